// A matrix product over prepared rows, split by rows and output columns among a team.
#pragma once
#include "linear/linear.h"
#include "tape/op.h"

namespace pellucid {

class LinearOp : public RowOp {
  public:
    // A slot (-1: none) and how many floats from one of its rows to the next.
    struct Rows {
        int slot = -1;
        int64_t stride = 0;
    };

    // prepared: a slot that a RowProgram fills. residual: to be added.
    LinearOp(const PackedMatrix& matrix, int prepared, Rows out, Rows residual, float softcap)
        : matrix_(matrix), prepared_(prepared), out_(out), residual_(residual), softcap_(softcap) {}

    std::string name() const override {
        return "linear " + matrix_.format() + " " + std::to_string(matrix_.out_features) + "x" +
               std::to_string(matrix_.in_features);
    }
    void run(const ThreadPool::Team& team, const View& view) const override;

    // The tape's next product: each thread asks for its first panel while it works on its last one of this.
    void followed_by(const PackedMatrix& next) { next_ = &next; }

  private:
    const PackedMatrix& matrix_;
    const PackedMatrix* next_ = nullptr;
    const int prepared_;
    const Rows out_;
    const Rows residual_;
    const float softcap_;
};

}  // namespace pellucid
