// oneDNN 2.6 to 3.x: the differences between its versions.
#pragma once

#include <dnnl.hpp>
#include <string>
#include <tuple>

namespace lockstep::kernels {

/// The primitive descriptor for `sizes`, in oneDNN's order without engine and attributes; empty if there is
/// no implementation. `hint`: the descriptor of the forward pass, which a backward pass gets, or nothing.
/// oneDNN 2 takes a description of the operation, oneDNN 3 its parts.
template <class Primitive, class... Sizes, class... Hint>
typename Primitive::primitive_desc describe(const dnnl::engine& engine,
                                            const dnnl::primitive_attr& attributes,
                                            const std::tuple<Sizes...>& sizes, const Hint&... hint) {
  using Descriptor = typename Primitive::primitive_desc;
  return std::apply(
      [&](const auto&... size) {
        if constexpr (requires { typename Primitive::desc; })
          return Descriptor(typename Primitive::desc(size...), attributes, engine, hint..., true);
        else
          return Descriptor(engine, size..., hint..., attributes, true);
      },
      sizes);
}

/// "oneDNN 3.7.2": the library that is loaded.
std::string onednn_version();
std::string onednn_build();  ///< its hash
/// The instruction set that oneDNN uses here, by its own name: "avx2", "avx512_core_bf16".
std::string onednn_instruction_set();
bool onednn_has_avx512();
/// Whether oneDNN multiplies bf16 by special instructions (AVX512-BF16, AMX).
bool onednn_has_bf16();

}  // namespace lockstep::kernels
