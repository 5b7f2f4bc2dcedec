#include "attention/pages_ahead.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

namespace pellucid {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kPieceBytes = 1 << 20;  // of a layer, which is done or not
constexpr auto kQuiet = std::chrono::milliseconds(20);  // without a step: nothing is being computed

void run_only_when_idle() {
#if defined(SCHED_IDLE)
    sched_param none{};
    pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);
#endif
}

}  // namespace

PagesAhead::PagesAhead(std::vector<const KVCache*> caches, size_t num_bytes)
    : caches_(std::move(caches)),
      num_blocks_(caches_.empty() ? 0 : caches_[0]->layout.num_blocks),
      ahead_(caches_.empty() ? 0 : static_cast<int64_t>(num_bytes / (caches_[0]->layout.block_bytes() * caches_.size()))),
      wanted_(std::min(ahead_, num_blocks_)),
      thread_([this] { run(); }) {}

PagesAhead::~PagesAhead() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
    }
    wanted_more_.notify_all();
    thread_.join();
}

void PagesAhead::used(int64_t block) {
    std::lock_guard<std::mutex> lock(mutex_);
    ++num_uses_;
    last_use_ = std::chrono::steady_clock::now();
    const int64_t wanted = std::min(block + 1 + ahead_, num_blocks_);
    // Not for every block: to wake a thread costs a step more than a block of pages.
    const int64_t enough = wanted == num_blocks_ ? 1 : ahead_ / 8 + 1;
    if (wanted - wanted_ < enough) return;
    wanted_ = wanted;
    wanted_more_.notify_one();
}

int64_t PagesAhead::num_blocks_ready() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return ready_;
}

void PagesAhead::run() {
    run_only_when_idle();
    const size_t block_bytes = caches_.empty() ? kPieceBytes : caches_[0]->layout.block_bytes();
    const int64_t piece = std::max<int64_t>(1, static_cast<int64_t>(kPieceBytes / block_bytes));
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
        wanted_more_.wait(lock, [this] { return stop_ || ready_ < wanted_; });
        if (wanted_more_.wait_until(lock, last_use_ + kQuiet, [this] { return stop_.load(); })) return;
        if (std::chrono::steady_clock::now() < last_use_ + kQuiet) continue;  // used again meanwhile
        const int64_t begin = ready_, end = std::min(begin + piece, wanted_), num_uses = num_uses_;
        lock.unlock();
        const bool done = touch(begin, end, num_uses);
        lock.lock();
        if (done) ready_ = end;
    }
}

// Writes nothing: the blocks may be in use already, and their tokens be written at this moment.
bool PagesAhead::touch(int64_t begin, int64_t end, int64_t num_uses) const {
    for (const KVCache* cache : caches_) {
        const size_t block = cache->layout.block_bytes();
        std::byte* const last = cache->data() + static_cast<size_t>(end) * block;
        for (std::byte* at = cache->data() + static_cast<size_t>(begin) * block; at < last; at += kPage) {
            if (stop_ || num_uses_ != num_uses) return false;
            __atomic_fetch_or(reinterpret_cast<uint8_t*>(at), uint8_t{0}, __ATOMIC_RELAXED);
        }
    }
    return true;
}

}  // namespace pellucid
