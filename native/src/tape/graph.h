// Recorded calls as a graph, and the rewriting of it that saves work without changing a bit.
#pragma once
#include <cstdint>
#include <vector>

#include "attention/attention.h"
#include "tape/row_program.h"
#include "tape/tape.h"

namespace pellucid {

enum class NodeKind { embed, linear, norm, add, gated, select, rope, attention };

// The result of one call: [rows of space, width].
struct Node {
    NodeKind kind;
    int64_t width;
    int a = -1;  // operands
    int b = -1;
    int residual = -1;  // of a linear: added to it
    Space space = Space::tokens;
    int order = 0;         // place in the program
    RowInstruction row{};  // of a row-wise call, without its operands; a linear's matrix and softcap (as factor) too
    AttentionParams attention{};
};

struct Graph {
    std::vector<Node> nodes;
    int result = -1;

    // Nodes that are needed, in an order in which they can run: by tokens before by logits rows, each in program order.
    std::vector<int> sequence() const;
    // For each node, the needed nodes that read it.
    std::vector<std::vector<int>> users() const;

    // The node that selects x's logits rows, a new one if there is none.
    int select_of(int x);

    // select(f(x)) becomes f(select(x)) where all readers of a row-local f(x) select: after the last attention only
    // the rows whose logits are wanted are computed.
    void push_selects_up();

    // linear(x) + y becomes one node where nobody else reads linear(x).
    void fold_residuals();

  private:
    bool before(int a, int b) const;  // in sequence()
    void replace(int old_node, int new_node);
};

}  // namespace pellucid
