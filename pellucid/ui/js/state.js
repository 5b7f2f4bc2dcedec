// The engine as this page knows it: a snapshot, carried on by the events that follow (see docs/observability.md).

const KEPT_STEPS = 400;
const KEPT_SECONDS = 120;
const KEPT_GONE = 40;

export class EngineState {
  constructor() {
    this.hello = {};
    this.stats = {};
    this.now = 0;
    this.paused = false;
    this.requests = new Map(); // by id; in order of arrival
    this.blocks = new Map(); // by block id: { owners: Set of ids, users: ids since it was filled, cached, hits }
    this.numBlocks = 0;
    this.blockSize = 16;
    this.highest = -1; // the highest block that was ever in use
    this.steps = [];
    this.seconds = []; // one bucket a second, for the plots
    this.numNamed = 0;
    this.started = null; // the step in progress
  }

  // A message of GET /engine/events.
  apply(message) {
    if (message.hello) Object.assign(this, { hello: message.hello, numBlocks: message.hello.num_blocks, blockSize: message.hello.block_size });
    if (message.now) this.now = message.now;
    for (const event of message.events ?? []) this[`on_${event.type}`]?.(event);
    if (message.stats) {
      this.stats = message.stats;
      const second = this.second(message.now);
      second.used = message.stats.num_blocks - message.stats.num_free_blocks;
      second.cached = message.stats.num_cached_blocks;
    }
  }

  // requests ---------------------------------------------------------------------------------------------------------

  request(id, time) {
    let request = this.requests.get(id);
    if (!request) {
      request = { id, number: this.numNamed++, status: "waiting", arrival: time, promptTokens: 0, tokens: 0, maxTokens: 0,
        target: 0, computed: 0, cached: 0, blocks: [], firstToken: null, lastToken: null, reason: "" };
      this.requests.set(id, request);
      this.forgetOld();
    }
    return request;
  }

  forgetOld() {
    const gone = [...this.requests.values()].filter((request) => request.status === "gone");
    for (const request of gone.slice(0, Math.max(0, gone.length - KEPT_GONE))) this.requests.delete(request.id);
  }

  on_arrived(e) {
    const request = this.request(e.request_id, e.time);
    Object.assign(request, { status: "waiting", promptTokens: e.num_prompt_tokens, tokens: e.num_prompt_tokens + e.num_output_tokens,
      maxTokens: e.max_num_tokens, pools: e.pools, computed: 0, blocks: [], why: "" });
  }

  on_refused(e) {
    Object.assign(this.request(e.request_id, e.time), { status: "gone", reason: "refused", why: e.reason });
  }

  on_held_back(e) {
    this.request(e.request_id, e.time).why = {
      kv_blocks: `needs ${e.needed_blocks} blocks, ${e.num_free_blocks} are free`,
      max_num_seqs: "the batch is full", token_budget: "this step's tokens are given out", preemption: "this step preempts",
    }[e.limited_by] ?? e.limited_by;
  }

  on_prefix_hit(e) {
    const request = this.request(e.request_id, e.time);
    Object.assign(request, { cached: e.num_cached_tokens, target: e.num_tokens, computed: e.num_cached_tokens });
    const second = this.second(e.time);
    second.asked += e.num_tokens;
    second.found += e.num_cached_tokens;
  }

  on_scheduled(e) { Object.assign(this.request(e.request_id, e.time), { status: "running", why: "" }); }

  on_preempted(e) { Object.assign(this.request(e.request_id, e.time), { status: "preempted", computed: 0, why: "gave its blocks back" }); }

  on_finished(e) {
    const request = this.request(e.request_id, e.time);
    Object.assign(request, { status: "gone", reason: e.reason, why: e.error ?? "", tokens: request.promptTokens + e.num_output_tokens });
  }

  // blocks ---------------------------------------------------------------------------------------------------------------

  block(id) {
    let block = this.blocks.get(id);
    if (!block) this.blocks.set(id, (block = { owners: new Set(), users: [], cached: false, hits: 0 }));
    this.highest = Math.max(this.highest, id);
    return block;
  }

  on_blocks_allocated(e) {
    const request = this.request(e.request_id, e.time);
    e.block_ids.forEach((id, index) => {
      const block = this.block(id);
      if (index >= e.num_shared) Object.assign(block, { users: [], hits: 0 });
      else block.hits += 1;
      block.owners.add(e.request_id);
      if (!block.users.includes(e.request_id)) block.users.push(e.request_id);
      request.blocks.push(id);
    });
  }

  on_blocks_freed(e) {
    for (const id of e.block_ids) {
      const block = this.block(id);
      block.owners.delete(e.request_id);
      if (!block.owners.size && !block.cached) this.blocks.delete(id);
    }
    this.request(e.request_id, e.time).blocks = [];
  }

  on_block_cached(e) { this.block(e.block_id).cached = true; }

  on_block_evicted(e) { this.blocks.delete(e.block_id); }

  on_block_withdrawn(e) {
    const block = this.block(e.block_id);
    block.cached = false;
    if (!block.owners.size) this.blocks.delete(e.block_id);
  }

  // steps ---------------------------------------------------------------------------------------------------------------

  on_step_started(e) { this.started = e; }

  on_step(e) {
    const started = this.started?.step === e.step ? this.started : { request_ids: [], num_tokens: [] };
    const end = e.time + e.schedule_s + e.forward_s + e.sample_s + e.output_s;
    const second = this.second(end);
    let prefill = 0;
    started.request_ids.forEach((id, index) => {
      const request = this.requests.get(id);
      if (!request) return;
      if (request.computed < request.target) prefill += started.num_tokens[index];
      request.computed += started.num_tokens[index];
      if (request.computed < request.target) return;
      request.tokens = Math.max(request.tokens, request.status === "gone" ? 0 : request.computed + 1);
      if (request.firstToken === null) second.ttft.push(end - (request.firstToken = end, request.arrival));
      else if (request.lastToken !== null) second.itl.push(end - request.lastToken);
      request.lastToken = end;
    });
    second.tokens += e.num_sampled;
    this.steps.push({ step: e.step, time: e.time, prefill, decode: e.num_tokens - prefill, requests: e.num_reqs, sampled: e.num_sampled,
      phases: [e.schedule_s, e.forward_s, e.sample_s, e.output_s] });
    if (this.steps.length > KEPT_STEPS) this.steps.splice(0, this.steps.length - KEPT_STEPS);
  }

  second(time) {
    const t = Math.floor(time);
    let last = this.seconds.at(-1);
    if (last?.t === t) return last;
    if (last && t < last.t) return this.seconds.find((second) => second.t === t) ?? last;
    last = { t, tokens: 0, ttft: [], itl: [], asked: 0, found: 0, used: last?.used ?? 0, cached: last?.cached ?? 0 };
    this.seconds.push(last);
    while (this.seconds[0].t < t - KEPT_SECONDS) this.seconds.shift();
    return last;
  }

  // the engine -------------------------------------------------------------------------------------------------------------

  on_paused(e) { this.paused = e.paused; }

  on_engine_died() { this.blocks.clear(); }

  on_snapshot(e) {
    Object.assign(this, { paused: e.paused, numBlocks: e.num_blocks, blockSize: e.block_size });
    const before = this.blocks;
    this.blocks = new Map();
    for (const cached of e.cached_blocks) {
      const users = before.get(cached.block_id)?.cached ? before.get(cached.block_id).users : [];
      Object.assign(this.block(cached.block_id), { cached: true, hits: cached.num_hits, users });
    }
    const alive = new Set(e.requests.map((state) => state.request_id));
    for (const request of this.requests.values()) if (!alive.has(request.id)) request.status = "gone";
    for (const state of e.requests) {
      const request = this.request(state.request_id, state.arrival_time);
      Object.assign(request, { status: state.status, promptTokens: state.num_prompt_tokens, tokens: state.num_tokens, maxTokens: state.max_num_tokens,
        pools: state.pools, target: Math.max(request.target, state.num_prompt_tokens), computed: state.num_computed_tokens, cached: state.num_cached_tokens, blocks: state.block_ids });
      if (state.num_computed_tokens >= request.target && request.firstToken === null) request.firstToken = this.now;
      for (const id of state.block_ids) {
        const block = this.block(id);
        block.owners.add(request.id);
        if (!block.users.includes(request.id)) block.users.push(request.id);
      }
    }
  }

  // what the panels ask ----------------------------------------------------------------------------------------------------

  byStatus(...statuses) { return [...this.requests.values()].filter((request) => statuses.includes(request.status)); }

  get tokensPerSecond() {
    const whole = this.seconds.filter((second) => second.t < Math.floor(this.now) && second.t >= Math.floor(this.now) - 3);
    return whole.length ? whole.reduce((sum, second) => sum + second.tokens, 0) / 3 : 0;
  }

  poolCounts() {
    const counts = { used: 0, shared: 0, cached: 0 };
    for (const block of this.blocks.values()) {
      if (block.owners.size) counts.used += 1;
      else if (block.cached) counts.cached += 1;
      if (block.owners.size > 1) counts.shared += 1;
    }
    return { ...counts, free: this.numBlocks - counts.used - counts.cached };
  }

  // Runs of blocks that the same two or more requests used: [{ users, ids, held }].
  sharing() {
    const groups = new Map();
    for (const [id, block] of [...this.blocks].sort((a, b) => a[0] - b[0])) {
      const users = block.users.filter((user) => this.requests.has(user));
      if (users.length < 2) continue;
      const key = [...users].sort().join(" ");
      if (!groups.has(key)) groups.set(key, { users, ids: [], held: 0 });
      groups.get(key).ids.push(id);
      groups.get(key).held += block.owners.size > 0;
    }
    return [...groups.values()].sort((a, b) => b.users.length - a.users.length || b.ids.length - a.ids.length);
  }
}
