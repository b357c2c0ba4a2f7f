// Memory of a node: one copy of read-only data for all of its ranks.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "lockstep/comm/host_group.h"

namespace lockstep::comm {

/// Zeroed memory that the ranks of a node share: what one writes before a collective, the others read after
/// it. Freed when the last of them drops it, which is no collective. Collective over the world; null on every
/// rank if the system refuses it on some node, or if its ranks do not see each other's files in /proc.
std::shared_ptr<std::byte[]> allocate_on_node(HostGroup& world, std::size_t bytes);

/// Completes such memory on every node: part_of_rank[r] of it was written by rank r, on its own node only.
/// Collective over the world.
void exchange_between_nodes(HostGroup& world, std::span<const std::span<std::byte>> part_of_rank);

}  // namespace lockstep::comm
