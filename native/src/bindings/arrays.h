// Arrays as Python hands them over (torch tensors and numpy arrays alike), and the batch made of them.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>

#include "batch.h"

namespace pellucid {

using Ints = nanobind::ndarray<const int32_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using IntTable = nanobind::ndarray<const int32_t, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
using FloatVector = nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using FloatRows = nanobind::ndarray<const float, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
using MutableRows = nanobind::ndarray<float, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

inline void require(bool condition, const std::string& message) {
    if (!condition) throw std::invalid_argument(message);
}

// Keeps the arrays alive beside the pointers to them.
class StepBatch {
  public:
    StepBatch(Ints input_ids, Ints positions, Ints query_start_loc, Ints seq_lens, Ints slot_mapping, IntTable block_table,
              Ints logits_indices, int64_t block_size)
        : input_ids_(std::move(input_ids)), positions_(std::move(positions)), query_start_loc_(std::move(query_start_loc)),
          seq_lens_(std::move(seq_lens)), slot_mapping_(std::move(slot_mapping)), block_table_(std::move(block_table)),
          logits_indices_(std::move(logits_indices)) {
        batch.num_tokens = static_cast<int64_t>(input_ids_.shape(0));
        batch.num_reqs = static_cast<int64_t>(seq_lens_.shape(0));
        batch.num_logits = static_cast<int64_t>(logits_indices_.shape(0));
        batch.max_blocks = static_cast<int64_t>(block_table_.shape(1));
        batch.block_size = block_size;
        batch.input_ids = input_ids_.data();
        batch.positions = positions_.data();
        batch.query_start_loc = query_start_loc_.data();
        batch.seq_lens = seq_lens_.data();
        batch.slot_mapping = slot_mapping_.data();
        batch.block_table = block_table_.data();
        batch.logits_indices = logits_indices_.data();
        const auto tokens = input_ids_.shape(0), reqs = seq_lens_.shape(0);
        require(block_size > 0, "block_size must be positive");
        require(positions_.shape(0) == tokens && slot_mapping_.shape(0) == tokens,
                "input_ids, positions and slot_mapping must have one entry a token");
        require(query_start_loc_.shape(0) == reqs + 1 && block_table_.shape(0) == reqs,
                "query_start_loc must have one entry more than seq_lens, block_table as many rows");
    }

    Batch batch;

  private:
    Ints input_ids_, positions_, query_start_loc_, seq_lens_, slot_mapping_;
    IntTable block_table_;
    Ints logits_indices_;
};

}  // namespace pellucid
