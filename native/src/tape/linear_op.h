// A matrix product over prepared rows, split by rows and output columns among a team.
#pragma once
#include "linear/linear.h"
#include "tape/op.h"

namespace pellucid {

class LinearOp : public RowOp {
  public:
    // Slots: prepared (by a RowProgram), out, and the residual to add (or -1).
    LinearOp(const PackedMatrix& matrix, int prepared, int out, int residual = -1, float softcap = 0)
        : matrix_(matrix), prepared_(prepared), out_(out), residual_(residual), softcap_(softcap) {}

    std::string name() const override {
        return "linear " + matrix_.format() + " " + std::to_string(matrix_.out_features) + "x" +
               std::to_string(matrix_.in_features);
    }
    void run(const ThreadPool::Team& team, const View& view) const override;

  private:
    const PackedMatrix& matrix_;
    const int prepared_;
    const int out_;
    const int residual_;
    const float softcap_;
};

}  // namespace pellucid
