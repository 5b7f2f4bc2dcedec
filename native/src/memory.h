// Memory that kernels like: aligned, in huge pages where it is large, zero until written.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

namespace pellucid {

// Owns a block of zeroed memory. Pages are taken from the system only when touched.
class Buffer {
  public:
    Buffer() = default;
    // Throws std::bad_alloc.
    explicit Buffer(size_t num_bytes);
    ~Buffer();
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        swap(other);
        return *this;
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    std::byte* data() const { return data_; }
    size_t num_bytes() const { return num_bytes_; }

    // Makes room for num_bytes; what was in it is lost if it has to grow.
    void reserve(size_t num_bytes) {
        if (num_bytes > num_bytes_) *this = Buffer(num_bytes + num_bytes / 8);
    }

  private:
    void swap(Buffer& other) {
        std::swap(data_, other.data_);
        std::swap(num_bytes_, other.num_bytes_);
    }

    std::byte* data_ = nullptr;
    size_t num_bytes_ = 0;
};

inline size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace pellucid
