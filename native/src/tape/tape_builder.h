// From recorded calls to a tape.
//
// A recording is a graph of nodes in program order, each the result of one call of the kernel interface. build() turns
// it into segments:
//   1. select_rows moves up through everything row-local, so that after the last attention only the rows whose logits
//      are wanted are computed;
//   2. an addition whose operand is a matrix product becomes that product's epilogue;
//   3. what nobody reads is dropped;
//   4. runs of row-wise calls become one row program, ending with the conversion the next matrix wants;
//   5. buffers are shared between values that do not live at the same time.
// None of it changes a bit of the result.
#pragma once
#include <cstdint>
#include <memory>

#include "tape/graph.h"
#include "tape/tape.h"

namespace pellucid {

class TapeBuilder {
  public:
    explicit TapeBuilder(Isa isa) : isa_(isa) {}

    // Each returns the number of a new node. Weights, matrices and caches are referred to, not copied: they must outlive
    // the tape. Throws std::invalid_argument where widths do not fit.
    int embedding(const PackedMatrix& matrix, float factor);
    int linear(int x, const PackedMatrix& matrix, float softcap);
    int rms_norm(int x, const float* weight, int64_t width, float eps);
    int add(int x, int y);
    int gated(int x, Activation activation);
    int select_rows(int x);
    int rope_and_cache(int qkv, const RopeParams& params, const KVCache& cache);
    int attention(int q, const AttentionParams& params, const KVCache& cache);

    int64_t width(int node) const { return at(node).width; }

    std::unique_ptr<Tape> build(int result);

  private:
    int push(Node node);
    const Node& at(int node) const;

    Isa isa_;
    Graph graph_;
};

}  // namespace pellucid
