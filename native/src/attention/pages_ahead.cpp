#include "attention/pages_ahead.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

namespace pellucid {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kPieceBytes = 1 << 20;  // of a layer, between two looks at whether to stop

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
    const int64_t wanted = std::min(block + 1 + ahead_, num_blocks_);
    // Not for every block: to wake a thread costs a step more than a block of pages.
    if (wanted - wanted_ <= ahead_ / 8 && wanted < num_blocks_) return;
    if (wanted <= wanted_) return;
    wanted_ = wanted;
    wanted_more_.notify_one();
}

int64_t PagesAhead::num_blocks_ready() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return ready_;
}

void PagesAhead::run() {
    run_only_when_idle();
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
        wanted_more_.wait(lock, [this] { return stop_ || ready_ < wanted_; });
        if (stop_) return;
        const int64_t piece = std::max<int64_t>(1, static_cast<int64_t>(kPieceBytes / caches_[0]->layout.block_bytes()));
        const int64_t begin = ready_, end = std::min(begin + piece, wanted_);
        lock.unlock();
        touch(begin, end);
        lock.lock();
        ready_ = end;
    }
}

// Writes nothing: the block may be in use already, and its tokens be written at this moment.
void PagesAhead::touch(int64_t begin, int64_t end) const {
    for (const KVCache* cache : caches_) {
        const size_t block = cache->layout.block_bytes();
        std::byte* const last = cache->data() + static_cast<size_t>(end) * block;
        for (std::byte* at = cache->data() + static_cast<size_t>(begin) * block; at < last && !stop_; at += kPage)
            __atomic_fetch_or(reinterpret_cast<uint8_t*>(at), uint8_t{0}, __ATOMIC_RELAXED);
    }
}

}  // namespace pellucid
