// SPDX-License-Identifier: BSD-3-Clause
// Checks files and descriptors of components. Start-up context. Functions that return a string return what is wrong,
// or "".
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <system_error>
#include <utility>

#include "base/loader/loader.h"

// The ELF header of the shared object or program into which this code is linked; the linker makes the symbol.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" __attribute__((visibility("hidden"))) const ElfW(Ehdr) __ehdr_start;

namespace pinrail::loader {
namespace {

using Header = ElfW(Ehdr);
using Segment = ElfW(Phdr);

constexpr const char* kCutOff = "is cut off: ";

// More segments than any linker makes. The file must not decide how much memory is allocated.
constexpr unsigned kMaxSegments = 1024;

class File {
 public:
  // status: of the file.
  File(int fd, const struct stat& status) : fd_(fd), length_(static_cast<uint64_t>(status.st_size)) {
    const ssize_t got = pread(fd_, start_, sizeof(start_), 0);
    start_length_ = got > 0 ? static_cast<size_t>(got) : 0;
  }

  // Returns whether the range lies inside the file.
  bool holds(uint64_t offset, uint64_t length) const { return offset <= length_ && length <= length_ - offset; }

  bool read_at(uint64_t offset, void* into, size_t length) const {
    if (!holds(offset, length)) return false;
    if (offset + length > start_length_)
      return pread(fd_, into, length, static_cast<off_t>(offset)) == static_cast<ssize_t>(length);
    std::memcpy(into, start_ + offset, length);
    return true;
  }

 private:
  const int fd_;
  const uint64_t length_;
  size_t start_length_;
  unsigned char start_[1024];  // of the file: mostly all headers, so that a start reads each file once
};

// Returns what is wrong with the ELF header, or "".
std::string check_header(const File& file, Header* header) {
  unsigned char ident[EI_NIDENT];
  if (!file.read_at(0, ident, sizeof(ident)) || std::memcmp(ident, ELFMAG, SELFMAG) != 0) return "is not an ELF file";
  if (ident[EI_CLASS] != __ehdr_start.e_ident[EI_CLASS]) return "is of another word size than this process";
  if (ident[EI_DATA] != __ehdr_start.e_ident[EI_DATA]) return "is of another byte order than this machine";
  if (!file.read_at(0, header, sizeof(*header))) return std::string(kCutOff) + "its header is not whole";
  if (header->e_machine != __ehdr_start.e_machine) {
    return "is for machine " + std::to_string(header->e_machine) + ", this is " +
           std::to_string(__ehdr_start.e_machine);
  }
  if (header->e_type != ET_DYN) return "is an ELF file, but not a shared object";
  if (header->e_phentsize != sizeof(Segment)) return "has segment headers of another size";
  if (header->e_phnum == 0) return "has no segments";
  if (header->e_phnum > kMaxSegments) return "has more segments than a linker makes";
  return "";
}

std::string check_segment(const File& file, const Segment& segment) {
  if (segment.p_type != PT_LOAD && segment.p_type != PT_DYNAMIC && segment.p_type != PT_NOTE) return "";
  if (!file.holds(segment.p_offset, segment.p_filesz)) {
    return kCutOff + std::string("a segment reaches behind its end");
  }
  if (segment.p_type == PT_LOAD && segment.p_filesz > segment.p_memsz) return "has a segment larger than its memory";
  return "";
}

// Returns whether the address range lies in the part of a loaded segment that the file fills.
bool is_loaded(const std::vector<Segment>& segments, const Segment& inner) {
  return std::any_of(segments.begin(), segments.end(), [&inner](const Segment& outer) {
    return outer.p_type == PT_LOAD && inner.p_vaddr >= outer.p_vaddr && inner.p_filesz <= outer.p_filesz &&
           inner.p_vaddr - outer.p_vaddr <= outer.p_filesz - inner.p_filesz;
  });
}

// Returns what is wrong with the program headers, or "".
std::string check_segments(const File& file, const Header& header) {
  std::vector<Segment> segments(header.e_phnum);
  if (!file.read_at(header.e_phoff, segments.data(), segments.size() * sizeof(Segment))) {
    return std::string(kCutOff) + "its segment headers are not whole";
  }
  bool has_dynamic = false;
  for (const Segment& segment : segments) {
    std::string why = check_segment(file, segment);
    if (!why.empty()) return why;
    if (segment.p_type != PT_DYNAMIC) continue;
    has_dynamic = true;
    if (!is_loaded(segments, segment)) return "has a dynamic section that is not loaded";
  }
  return has_dynamic ? "" : "has no dynamic section";
}

// Returns what is wrong with the file, or "".
std::string check_elf(int fd, const struct stat& status) {
  if (S_ISDIR(status.st_mode)) return "is a folder";
  if (!S_ISREG(status.st_mode)) return "is not a regular file";
  const File file(fd, status);
  Header header{};
  const std::string why = check_header(file, &header);
  return why.empty() ? check_segments(file, header) : why;
}

// Returns a descriptor, or -1 and an errno. *why_out: it is a link that must not be followed.
int open_file(const std::string& path, trust::Named named, std::string* why_out) {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  const int file = ::open(path.c_str(), kFlags | O_NOFOLLOW);
  if (file >= 0 || errno != ELOOP) return file;
  *why_out = trust::why_untrusted_link(path, named);
  return why_out->empty() ? ::open(path.c_str(), kFlags) : -1;
}

}  // namespace

Status check_file(const std::string& path, trust::Named named, std::string* why_out) {
  why_out->clear();
  const Descriptor file(open_file(path, named, why_out));
  if (!why_out->empty()) return PINRAIL_ERR_PERM;
  struct stat about {};
  if (!file.is_open() || fstat(file.get(), &about) != 0) {
    *why_out = "cannot be read: " + std::generic_category().message(errno);
    return PINRAIL_ERR_ERROR;
  }
  *why_out = trust::why_untrusted(about, named);
  if (!why_out->empty()) return PINRAIL_ERR_PERM;
  *why_out = check_elf(file.get(), about);
  return why_out->empty() ? success() : Status(PINRAIL_ERR_ERROR);
}

// Checks component descriptors. Start-up context.

namespace {

// The part that descriptors of all versions have. Only this may be read before the size is known to be ours.
constexpr size_t kFixedPart = offsetof(pinrail_component_t, version);

std::string both(const char* what, uint64_t its, uint64_t ours) {
  return std::string(what) + " " + std::to_string(its) + " (this library: " + std::to_string(ours) + ")";
}

void append(std::string* differences, const std::string& difference) {
  if (!differences->empty()) *differences += ", ";
  *differences += difference;
}

// Returns the differences in ABI number and sizes between a descriptor and this library, or "".
std::string differences_of(const pinrail_component_t& descriptor, const Framework& framework) {
  std::string differences;
  if (descriptor.abi != framework.abi) {
    append(&differences, std::string(framework.name) + both(" ABI", descriptor.abi, framework.abi));
  }
  if (descriptor.size != sizeof(pinrail_component_t)) {
    append(&differences, both("descriptor size", descriptor.size, sizeof(pinrail_component_t)));
    return differences;
  }
  if (descriptor.ops == nullptr) return differences;
  size_t ops_size = 0;
  std::memcpy(&ops_size, descriptor.ops, sizeof(ops_size));
  // A larger table is a newer one with more at its end: with equal ABI numbers its known part is valid.
  if (ops_size < framework.ops_size) append(&differences, both("size of the table", ops_size, framework.ops_size));
  return differences;
}

std::string quoted(std::string_view text) { return "\"" + std::string(text) + "\""; }

// Returns the size of the object that this symbol names; 0: there is none. Where the C library does not tell (musl),
// the descriptor's own size has to do.
uint64_t size_of(const void* symbol) {
#ifdef __GLIBC__
  Dl_info info{};
  void* extra = nullptr;
  if (dladdr1(symbol, &info, &extra, RTLD_DL_SYMENT) == 0 || extra == nullptr) return 0;
  return static_cast<const ElfW(Sym)*>(extra)->st_size;
#else
  return static_cast<const pinrail_component_t*>(symbol)->size;
#endif
}

Status refuse(std::string* why_out, pinrail_status_t status, std::string why) {
  *why_out = std::move(why);
  return status;
}

}  // namespace

Status check_descriptor(const pinrail_component_t& descriptor, const Framework& framework, std::string_view name,
                        std::string* why_out) {
  const std::string its_framework = text_of(descriptor.framework);
  if (its_framework != framework.name) {
    return refuse(why_out, PINRAIL_ERR_ERROR,
                  "says that it is of framework " + quoted(its_framework) + ", not " + quoted(framework.name));
  }
  const std::string differences = differences_of(descriptor, framework);
  if (!differences.empty()) {
    return refuse(why_out, PINRAIL_ERR_VERSION, "was built against another Pinrail: " + differences);
  }
  const std::string its_name = text_of(descriptor.name);
  if (its_name != name) {
    return refuse(why_out, PINRAIL_ERR_ERROR,
                  "says that its name is " + quoted(its_name) + ", its file name says " + quoted(name));
  }
  if (descriptor.ops == nullptr) return refuse(why_out, PINRAIL_ERR_ERROR, "has no table of functions");
  if (descriptor.open == nullptr) return refuse(why_out, PINRAIL_ERR_ERROR, "has no open()");
  if (framework.is_complete != nullptr && !framework.is_complete(descriptor.ops)) {
    return refuse(why_out, PINRAIL_ERR_ERROR, "lacks a function that is not optional (component.h)");
  }
  if (descriptor.params == nullptr && descriptor.param_count != 0) {
    return refuse(why_out, PINRAIL_ERR_ERROR, "counts parameters but has none");
  }
  return success();
}

Status find_descriptor(void* handle, const pinrail_component_t** descriptor_out, std::string* why_out) {
  void* const symbol = dlsym(handle, "pinrail_component");
  if (symbol == nullptr) return refuse(why_out, PINRAIL_ERR_ERROR, "exports no symbol pinrail_component");
  const auto* descriptor = static_cast<const pinrail_component_t*>(symbol);
  const uint64_t bytes = size_of(symbol);
  if (bytes == 0) return refuse(why_out, PINRAIL_ERR_ERROR, "exports a symbol pinrail_component that lies nowhere");
  if (bytes < kFixedPart || bytes < descriptor->size) {
    return refuse(why_out, PINRAIL_ERR_VERSION,
                  "exports a symbol pinrail_component of " + std::to_string(bytes) +
                      " bytes (this library: " + std::to_string(sizeof(pinrail_component_t)) + ")");
  }
  *descriptor_out = descriptor;
  return success();
}

}  // namespace pinrail::loader
