#include "tape/graph.h"

#include <algorithm>

namespace pellucid {
namespace {

bool is_row_local(NodeKind kind) {
    return kind == NodeKind::linear || kind == NodeKind::norm || kind == NodeKind::add || kind == NodeKind::gated;
}

}  // namespace

bool Graph::before(int a, int b) const {
    const Node &x = nodes[a], &y = nodes[b];
    if (x.space != y.space) return x.space == Space::tokens;
    return x.order != y.order ? x.order < y.order : a < b;
}

std::vector<int> Graph::sequence() const {
    std::vector<bool> needed(nodes.size(), false);
    std::vector<int> pending{result};
    for (size_t i = 0; i < nodes.size(); ++i)
        if (nodes[i].kind == NodeKind::rope) pending.push_back(static_cast<int>(i));  // it writes the cache
    while (!pending.empty()) {
        const int node = pending.back();
        pending.pop_back();
        if (node < 0 || needed[node]) continue;
        needed[node] = true;
        pending.insert(pending.end(), {nodes[node].a, nodes[node].b, nodes[node].residual});
    }
    std::vector<int> order;
    for (size_t i = 0; i < nodes.size(); ++i)
        if (needed[i]) order.push_back(static_cast<int>(i));
    std::sort(order.begin(), order.end(), [this](int a, int b) { return before(a, b); });
    return order;
}

std::vector<std::vector<int>> Graph::users() const {
    std::vector<std::vector<int>> users(nodes.size());
    for (int node : sequence())
        for (int operand : {nodes[node].a, nodes[node].b, nodes[node].residual})
            if (operand >= 0) users[operand].push_back(node);
    return users;
}

int Graph::select_of(int x) {
    for (size_t i = 0; i < nodes.size(); ++i)
        if (nodes[i].kind == NodeKind::select && nodes[i].a == x) return static_cast<int>(i);
    Node node{NodeKind::select, nodes[x].width};
    node.a = x;
    node.space = Space::logits;
    node.order = nodes[x].order;
    node.row.kind = RowInstruction::Kind::copy;
    nodes.push_back(node);
    return static_cast<int>(nodes.size()) - 1;
}

void Graph::push_selects_up() {
    for (bool changed = true; changed;) {
        changed = false;
        const std::vector<std::vector<int>> readers = users();
        for (size_t i = nodes.size(); i-- > 0 && !changed;) {
            if (nodes[i].kind != NodeKind::select) continue;
            const int x = nodes[i].a;
            const std::vector<int>& readers_of_x = readers[x];
            if (x == result || !is_row_local(nodes[x].kind) || readers_of_x.size() != 1) continue;
            Node moved = nodes[x];
            moved.space = Space::logits;
            if (moved.a >= 0) moved.a = select_of(moved.a);
            if (moved.b >= 0) moved.b = select_of(moved.b);
            nodes[i] = moved;
            changed = true;
        }
    }
}

void Graph::replace(int old_node, int new_node) {
    for (Node& node : nodes) {
        for (int* operand : {&node.a, &node.b, &node.residual})
            if (*operand == old_node) *operand = new_node;
    }
    if (result == old_node) result = new_node;
}

void Graph::fold_residuals() {
    for (int node : sequence()) {
        if (nodes[node].kind != NodeKind::add) continue;
        const std::vector<std::vector<int>> readers = users();
        for (auto [product, other] : {std::pair(nodes[node].a, nodes[node].b), std::pair(nodes[node].b, nodes[node].a)}) {
            Node& linear = nodes[product];
            if (linear.kind != NodeKind::linear || linear.residual >= 0 || linear.row.factor > 0 || product == result ||
                readers[product].size() != 1 || !before(other, product))
                continue;
            linear.residual = other;
            replace(node, product);
            break;
        }
    }
}

}  // namespace pellucid
