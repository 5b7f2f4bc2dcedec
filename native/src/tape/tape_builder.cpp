#include "tape/tape_builder.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "tape/lowering.h"

namespace pellucid {
namespace {

void require(bool condition, const std::string& message) {
    if (!condition) throw std::invalid_argument(message);
}

}  // namespace

const Node& TapeBuilder::at(int node) const {
    require(node >= 0 && node < static_cast<int>(graph_.nodes.size()), "node " + std::to_string(node) + " is not on the tape");
    return graph_.nodes[node];
}

int TapeBuilder::push(Node node) {
    node.order = static_cast<int>(graph_.nodes.size());
    if (node.a >= 0) node.space = at(node.a).space;
    if (node.b >= 0) require(at(node.b).space == node.space, "operands have different numbers of rows");
    graph_.nodes.push_back(node);
    return node.order;
}

int TapeBuilder::embedding(const PackedMatrix& matrix, float factor) {
    Node node{NodeKind::embed, matrix.in_features};
    node.row.kind = RowInstruction::Kind::embed;
    node.row.matrix = &matrix;
    node.row.factor = factor;
    return push(node);
}

int TapeBuilder::linear(int x, const PackedMatrix& matrix, float softcap) {
    require(at(x).width == matrix.in_features, "a matrix of " + std::to_string(matrix.in_features) +
                                                   " columns cannot take rows of " + std::to_string(at(x).width));
    Node node{NodeKind::linear, matrix.out_features};
    node.a = x;
    node.row.matrix = &matrix;
    node.row.factor = softcap;
    return push(node);
}

int TapeBuilder::rms_norm(int x, const float* weight, int64_t width, float eps) {
    require(at(x).width == width, "a norm of width " + std::to_string(width) + " cannot take rows of " +
                                      std::to_string(at(x).width));
    Node node{NodeKind::norm, width};
    node.a = x;
    node.row.kind = RowInstruction::Kind::norm;
    node.row.weight = weight;
    node.row.eps = eps;
    return push(node);
}

int TapeBuilder::add(int x, int y) {
    require(at(x).width == at(y).width, "rows of different width cannot be added");
    Node node{NodeKind::add, at(x).width};
    node.a = x;
    node.b = y;
    node.row.kind = RowInstruction::Kind::add;
    return push(node);
}

int TapeBuilder::gated(int x, Activation activation) {
    require(at(x).width % 2 == 0, "a gated activation needs rows of even width");
    Node node{NodeKind::gated, at(x).width / 2};
    node.a = x;
    node.row.kind = RowInstruction::Kind::gated;
    node.row.activation = activation;
    return push(node);
}

int TapeBuilder::select_rows(int x) {
    require(at(x).space == Space::tokens, "rows are selected already");
    return graph_.select_of(x);
}

int TapeBuilder::rope_and_cache(int qkv, const RopeParams& params, const KVCache& cache) {
    require(at(qkv).space == Space::tokens, "only tokens have positions");
    require(at(qkv).width == (params.num_heads + 2 * params.num_kv_heads) * params.head_dim, "qkv has the wrong width");
    require(cache.layout.num_kv_heads == params.num_kv_heads && cache.layout.head_dim == params.head_dim,
            "the cache has another number or size of heads");
    Node node{NodeKind::rope, params.num_heads * params.head_dim};
    node.a = qkv;
    node.row.kind = RowInstruction::Kind::rope;
    node.row.rope = params;
    node.row.cache = &cache;
    return push(node);
}

int TapeBuilder::attention(int q, const AttentionParams& params, const KVCache& cache) {
    require(at(q).space == Space::tokens && at(q).width == params.num_heads * params.head_dim, "q has the wrong width");
    require(cache.layout.num_kv_heads == params.num_kv_heads && cache.layout.head_dim == params.head_dim,
            "the cache has another number or size of heads");
    Node node{NodeKind::attention, at(q).width};
    node.a = q;
    node.attention = params;
    node.row.cache = &cache;
    return push(node);
}

std::unique_ptr<Tape> TapeBuilder::build(int result) {
    at(result);
    graph_.result = result;
    graph_.push_selects_up();
    graph_.fold_residuals();
    return lower(graph_, isa_);
}

}  // namespace pellucid
