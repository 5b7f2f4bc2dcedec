// The passes over rows of logits that sampling needs: argmax, normaliser, likeliest tokens, rank, draw, grammar mask.
// Nothing here sorts the vocabulary: tokens are looked for among the few above a bound that one pass finds.
//
// A row is float32 [n]. What it gives depends on the row alone: sums run over chunks of 256 tokens in order. Where two
// tokens are equally likely, the one with the lower id comes first. But for argmax, rows hold no NaN, no +inf and at
// least one finite number.
#pragma once
#include <cstdint>
#include <vector>

#include "isa.h"

namespace pellucid {

constexpr int64_t kVocabularyChunk = 256;

struct TokenLogit {
    int32_t token;
    float logit;
};

struct DrawParams {
    float temperature;  // > 0
    int64_t top_k;      // 0: all
    double top_p;       // 1: all
    double min_p;       // 0: all
    double u;           // the random number, in [0, 1)
};

// The passes that are worth wide instructions.
struct VocabularyKernels {
    // tops[c] = the largest of chunk c; NaN where it holds one.
    void (*chunk_tops)(const float* row, int64_t n, float* tops);
    // weights[i] = exp((row[i] - highest) / temperature), 0 where that is below `cut`; sums[c] = their sum in chunk c.
    void (*weights)(const float* row, int64_t n, float highest, float temperature, float cut, float* weights, float* sums);
    // sums[c] = sum of exp(row[i] - highest) in chunk c.
    void (*exp_sums)(const float* row, int64_t n, float highest, float* sums);
    // How many of the row are above x.
    int64_t (*count_above)(const float* row, int64_t n, float x);
    // row[i] = -inf where bit i % 32 of mask[i / 32] is 0.
    void (*mask)(float* row, int64_t n, const int32_t* mask);
};

const VocabularyKernels& vocabulary_kernels(Isa isa);

// One thread's passes, with the memory they need.
class VocabularyPasses {
  public:
    explicit VocabularyPasses(Isa isa) : kernels_(vocabulary_kernels(isa)) {}

    // A NaN counts as the largest.
    TokenLogit argmax(const float* row, int64_t n);

    // log(sum(exp(row)))
    double log_normalizer(const float* row, int64_t n);

    // The `count` likeliest, likeliest first.
    std::vector<TokenLogit> most_likely(const float* row, int64_t n, int64_t count);

    // How far down its row a token stands, from 1.
    int64_t rank(const float* row, int64_t n, int64_t token);

    // From softmax(row / temperature): of it what is at least min_p times as likely as the likeliest; of that the top_k
    // likeliest; of that the fewest, likeliest first, that make up top_p.
    int64_t draw(const float* row, int64_t n, const DrawParams& params);

  private:
    const float* tops_of(const float* row, int64_t n);
    void collect_at_least(const float* row, int64_t n, float bound);
    void sort_candidates(size_t count);
    int64_t draw_among_candidates(size_t count, double total, double u) const;

    const VocabularyKernels& kernels_;
    std::vector<float> tops_;     // of chunks
    std::vector<float> sums_;     // of chunks
    std::vector<float> bounds_;
    std::vector<float> weights_;  // of tokens
    std::vector<TokenLogit> candidates_;
    std::vector<TokenLogit> spare_;
};

}  // namespace pellucid
