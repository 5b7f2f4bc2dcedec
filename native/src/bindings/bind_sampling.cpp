// Passes over rows of logits, rows shared among the threads.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "executor.h"
#include "sampling/vocabulary.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {
namespace {

using Rows = std::vector<int64_t>;
using DrawTuple = std::tuple<int64_t, float, int64_t, double, double, double>;  // row, then DrawParams in order
using MutableRow = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

class Vocabulary {
  public:
    explicit Vocabulary(Executor& executor) : executor_(executor), passes_(executor.pool.num_threads(), VocabularyPasses(executor.isa)) {}

    std::vector<std::pair<int64_t, float>> argmax(const FloatRows& logits) {
        std::vector<std::pair<int64_t, float>> found(logits.shape(0));
        for_each_row(logits, all_rows(logits), [&](size_t i, VocabularyPasses& passes, const float* row, int64_t n) {
            const TokenLogit top = passes.argmax(row, n);
            found[i] = {top.token, top.logit};
        });
        return found;
    }

    std::vector<double> log_normalizers(const FloatRows& logits, const Rows& rows) {
        std::vector<double> found(rows.size());
        for_each_row(logits, rows, [&](size_t i, VocabularyPasses& passes, const float* row, int64_t n) {
            found[i] = passes.log_normalizer(row, n);
        });
        return found;
    }

    std::vector<std::vector<int64_t>> most_likely(const FloatRows& logits, const Rows& rows, const Rows& counts) {
        require(counts.size() == rows.size(), "one count a row is needed");
        std::vector<std::vector<int64_t>> found(rows.size());
        for_each_row(logits, rows, [&](size_t i, VocabularyPasses& passes, const float* row, int64_t n) {
            for (const TokenLogit& token : passes.most_likely(row, n, counts[i])) found[i].push_back(token.token);
        });
        return found;
    }

    std::vector<int64_t> ranks(const FloatRows& logits, const Rows& rows, const Rows& tokens) {
        require(tokens.size() == rows.size(), "one token a row is needed");
        for (int64_t token : tokens)
            require(token >= 0 && token < static_cast<int64_t>(logits.shape(1)), "a token is outside the vocabulary");
        std::vector<int64_t> found(rows.size());
        for_each_row(logits, rows, [&](size_t i, VocabularyPasses& passes, const float* row, int64_t n) {
            found[i] = passes.rank(row, n, tokens[i]);
        });
        return found;
    }

    std::vector<int64_t> draw(const FloatRows& logits, const std::vector<DrawTuple>& draws) {
        Rows rows;
        for (const DrawTuple& draw : draws) {
            require(std::get<1>(draw) > 0, "temperature must be positive to draw");
            rows.push_back(std::get<0>(draw));
        }
        std::vector<int64_t> found(rows.size());
        for_each_row(logits, rows, [&](size_t i, VocabularyPasses& passes, const float* row, int64_t n) {
            const auto& [_, temperature, top_k, top_p, min_p, u] = draws[i];
            found[i] = passes.draw(row, n, {temperature, top_k, top_p, min_p, u});
        });
        return found;
    }

    void apply_mask(const MutableRow& row, const Ints& mask) {
        require(mask.shape(0) >= (row.shape(0) + 31) / 32, "the mask has fewer bits than the row has tokens");
        vocabulary_kernels(executor_.isa).mask(row.data(), static_cast<int64_t>(row.shape(0)), mask.data());
    }

  private:
    static Rows all_rows(const FloatRows& logits) {
        Rows rows(logits.shape(0));
        for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(i);
        return rows;
    }

    template <typename Body>
    void for_each_row(const FloatRows& logits, const Rows& rows, Body&& body) {
        const int64_t n = static_cast<int64_t>(logits.shape(1));
        require(n > 0, "there is no vocabulary");
        for (int64_t row : rows) require(row >= 0 && row < static_cast<int64_t>(logits.shape(0)), "there is no such row");
        nb::gil_scoped_release release;
        std::lock_guard<std::mutex> lock(executor_.mutex);
        auto share = [&](const ThreadPool::Team& team) {
            team.for_each(static_cast<int64_t>(rows.size()), [&](int64_t i) {
                body(static_cast<size_t>(i), passes_[team.thread], logits.data() + rows[i] * n, n);
            });
        };
        if (rows.size() == 1) share(ThreadPool::Team::solo());
        else executor_.pool.run(share);
    }

    Executor& executor_;
    std::vector<VocabularyPasses> passes_;  // one a thread
};

}  // namespace

void bind_sampling(nb::module_& m) {
    nb::class_<Vocabulary>(m, "Vocabulary", "Passes over float32 logits [rows, vocabulary]; see native/src/sampling/vocabulary.h.")
        .def(nb::init<Executor&>(), "executor"_a, nb::keep_alive<1, 2>())
        .def("argmax", &Vocabulary::argmax, "logits"_a.noconvert(), "[(token, logit)] of every row; a NaN counts as the largest.")
        .def("log_normalizers", &Vocabulary::log_normalizers, "logits"_a.noconvert(), "rows"_a)
        .def("most_likely", &Vocabulary::most_likely, "logits"_a.noconvert(), "rows"_a, "counts"_a)
        .def("ranks", &Vocabulary::ranks, "logits"_a.noconvert(), "rows"_a, "tokens"_a)
        .def("draw", &Vocabulary::draw, "logits"_a.noconvert(), "draws"_a,
             "draws: (row, temperature, top_k, top_p, min_p, u) each.")
        .def("apply_mask", &Vocabulary::apply_mask, "row"_a.noconvert(), "mask"_a.noconvert(),
             "row[i] = -inf where bit i % 32 of int32 mask[i // 32] is 0, in place.");
}

}  // namespace pellucid
