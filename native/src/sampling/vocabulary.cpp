#include "sampling/vocabulary.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

namespace pellucid {

PELLUCID_DECLARE_PER_ISA(const VocabularyKernels& vocabulary_kernels())

const VocabularyKernels& vocabulary_kernels(Isa isa) { PELLUCID_DISPATCH(isa, vocabulary_kernels()) }

namespace {

// Where top_p is asked for without top_k, its tokens are looked for among those at least 1/4, 1/16, ... as likely as the
// likeliest, down to this, and then among all: so few more than needed are sorted.
constexpr float kLeastBound = 1e-7f;

constexpr size_t kRadixFrom = 400;  // candidates in the order of their ids; fewer are sorted by comparing

bool before(const TokenLogit& a, const TokenLogit& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// A number that is the smaller the higher the logit; zeros of both signs are equal.
uint32_t descending(float logit) {
    logit += 0.0f;
    uint32_t bits;
    std::memcpy(&bits, &logit, sizeof bits);
    return bits >> 31 ? bits : ~bits & 0x7fffffffu;
}

// Sorts by logit, highest first, and keeps the order of equals: a radix sort, whose time does not depend on the data.
void radix_sort(std::vector<TokenLogit>& tokens, std::vector<TokenLogit>& spare) {
    constexpr int kBits = 11, kBuckets = 1 << kBits;
    spare.resize(tokens.size());
    for (int shift = 0; shift < 32; shift += kBits) {
        uint32_t starts[kBuckets + 1] = {};
        auto bucket = [shift](const TokenLogit& t) { return descending(t.logit) >> shift & (kBuckets - 1); };
        for (const TokenLogit& token : tokens) ++starts[bucket(token) + 1];
        for (int i = 0; i < kBuckets; ++i) starts[i + 1] += starts[i];
        for (const TokenLogit& token : tokens) spare[starts[bucket(token)]++] = token;
        tokens.swap(spare);
    }
}

int64_t num_chunks(int64_t n) { return (n + kVocabularyChunk - 1) / kVocabularyChunk; }

double sum_of(const std::vector<float>& sums) {
    double total = 0;
    for (float sum : sums) total += sum;
    return total;
}

}  // namespace

const float* VocabularyPasses::tops_of(const float* row, int64_t n) {
    tops_.resize(num_chunks(n));
    kernels_.chunk_tops(row, n, tops_.data());
    return tops_.data();
}

TokenLogit VocabularyPasses::argmax(const float* row, int64_t n) {
    tops_of(row, n);
    int64_t best = 0;
    for (int64_t c = 0; c < static_cast<int64_t>(tops_.size()) && !std::isnan(tops_[best]); ++c)
        if (tops_[c] > tops_[best] || std::isnan(tops_[c])) best = c;
    int64_t token = best * kVocabularyChunk;
    while (std::isnan(tops_[best]) ? !std::isnan(row[token]) : row[token] != tops_[best]) ++token;
    return {static_cast<int32_t>(token), row[token]};
}

double VocabularyPasses::log_normalizer(const float* row, int64_t n) {
    tops_of(row, n);
    const float highest = *std::max_element(tops_.begin(), tops_.end());
    sums_.resize(tops_.size());
    kernels_.exp_sums(row, n, highest, sums_.data());
    return static_cast<double>(highest) + std::log(sum_of(sums_));
}

// Candidates: all tokens with a logit of at least `bound`, by id. Chunks whose largest is below it are not looked at.
void VocabularyPasses::collect_at_least(const float* row, int64_t n, float bound) {
    candidates_.clear();
    for (size_t c = 0; c < tops_.size(); ++c) {
        if (tops_[c] < bound) continue;
        const int64_t begin = static_cast<int64_t>(c) * kVocabularyChunk;
        for (int64_t i = begin; i < std::min(begin + kVocabularyChunk, n); ++i)
            if (row[i] >= bound) candidates_.push_back({static_cast<int32_t>(i), row[i]});
    }
}

void VocabularyPasses::sort_candidates(size_t count) {
    if (count < candidates_.size()) {
        std::nth_element(candidates_.begin(), candidates_.begin() + count, candidates_.end(), before);
        candidates_.resize(count);
        std::sort(candidates_.begin(), candidates_.end(), before);
        return;
    }
    if (candidates_.size() < kRadixFrom) std::sort(candidates_.begin(), candidates_.end(), before);
    else radix_sort(candidates_, spare_);
}

std::vector<TokenLogit> VocabularyPasses::most_likely(const float* row, int64_t n, int64_t count) {
    count = std::min(count, n);
    if (count <= 0) return {};
    tops_of(row, n);
    // `count` chunks have a token of at least the count-th largest top: the tokens we want are not below it.
    float bound = -INFINITY;
    if (count <= static_cast<int64_t>(tops_.size())) {
        bounds_ = tops_;
        std::nth_element(bounds_.begin(), bounds_.begin() + (count - 1), bounds_.end(), std::greater<float>());
        bound = bounds_[count - 1];
    }
    collect_at_least(row, n, bound);
    sort_candidates(static_cast<size_t>(count));
    return candidates_;
}

int64_t VocabularyPasses::rank(const float* row, int64_t n, int64_t token) {
    const int64_t above = kernels_.count_above(row, n, row[token]);
    return 1 + above + std::count(row, row + token, row[token]);
}

// The first token whose cumulative weight is above u * total; the last that has a weight, where rounding overshoots.
int64_t VocabularyPasses::draw_among_candidates(size_t count, double total, double u) const {
    double cumulative = 0;
    int64_t last = candidates_[0].token;
    for (size_t i = 0; i < count; ++i) {
        const float weight = weights_[candidates_[i].token];
        if (weight <= 0) continue;
        cumulative += weight;
        last = candidates_[i].token;
        if (cumulative > u * total) break;
    }
    return last;
}

int64_t VocabularyPasses::draw(const float* row, int64_t n, const DrawParams& params) {
    tops_of(row, n);
    const float highest = *std::max_element(tops_.begin(), tops_.end());
    weights_.resize(n);
    sums_.resize(tops_.size());
    kernels_.weights(row, n, highest, params.temperature, static_cast<float>(params.min_p), weights_.data(), sums_.data());
    const bool some_k = params.top_k > 0 && params.top_k < n;
    if (!some_k && params.top_p >= 1.0) {
        // The chunk that the number falls into, then the token in it.
        const double target = params.u * sum_of(sums_);
        double cumulative = 0;
        int64_t last = 0;
        for (int64_t c = 0; c < static_cast<int64_t>(sums_.size()); ++c) {
            if (sums_[c] <= 0) continue;
            last = c;
            if (cumulative + sums_[c] > target) break;
            cumulative += sums_[c];
        }
        const int64_t begin = last * kVocabularyChunk, end = std::min(begin + kVocabularyChunk, n);
        int64_t token = begin;
        for (int64_t i = begin; i < end; ++i) {
            if (weights_[i] <= 0) continue;
            token = i;
            cumulative += weights_[i];
            if (cumulative > target) break;
        }
        return token;
    }
    double total = 0;
    if (some_k) {
        most_likely(row, n, params.top_k);
        for (const TokenLogit& candidate : candidates_) total += weights_[candidate.token];
    } else {
        const double all = sum_of(sums_);
        for (float bound = 0.25f;; bound = bound > kLeastBound ? bound * 0.25f : 0.0f) {
            collect_at_least(row, n, highest + params.temperature * std::log(bound));
            double held = 0;
            for (const TokenLogit& candidate : candidates_) held += weights_[candidate.token];
            if (held >= params.top_p * all || bound == 0.0f) break;
        }
        sort_candidates(candidates_.size());
        total = all;
    }
    double cumulative = 0;
    size_t count = 0;
    while (count < candidates_.size()) {
        cumulative += weights_[candidates_[count++].token];
        if (cumulative >= params.top_p * total) break;
    }
    return draw_among_candidates(count, cumulative, params.u);
}

}  // namespace pellucid
