#include "lockstep/base/system_error.h"

#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep {

void throw_system_error(int error, const std::string& path, std::string_view action) {
  const char* reason = std::strerror(error);
  switch (error) {
    case EFBIG:
      throw DataError("{}: cannot {}: {}; raise the limit of file sizes (ulimit -f), or write elsewhere",
                      path, action, reason);
    case ENOSPC:
    case EDQUOT:
      throw DataError("{}: cannot {}: {}; free some space or write elsewhere", path, action, reason);
    case EROFS:
    case ENOENT:
    case EEXIST:
    case EISDIR:
      throw DataError("{}: cannot {}: {}", path, action, reason);
    case EACCES:
    case EPERM:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
      throw UsageError("{}: cannot {}: {}", path, action, reason);
    default:
      throw FailureError("{}: cannot {}: {}", path, action, reason);
  }
}

}  // namespace lockstep
