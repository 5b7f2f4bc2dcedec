#include "memory.h"

#include <sys/mman.h>

#include <new>

namespace pellucid {

namespace {
constexpr size_t kPage = 4096;
constexpr size_t kHugePage = 2 << 20;
}  // namespace

Buffer::Buffer(size_t num_bytes) {
    if (num_bytes == 0) return;
    num_bytes = round_up(num_bytes, kPage);
    void* block = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    if (num_bytes >= 2 * kHugePage) madvise(block, num_bytes, MADV_HUGEPAGE);
#endif
    data_ = static_cast<std::byte*>(block);
    num_bytes_ = num_bytes;
}

Buffer::~Buffer() {
    if (data_ != nullptr) munmap(data_, num_bytes_);
}

}  // namespace pellucid
