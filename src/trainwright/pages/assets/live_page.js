"use strict";
/* Controls to a question, a question to the server, its answer to words and to a page in a frame. */

const WAIT_MS = 160;        // after the last move of a slider
const NARROW_PX = 800;      // where the questions fold, so that the answer is on the first screen
const RANGE = 16;           // memory and bandwidth: from a sixteenth to sixteen times the catalog's
const TIME_PARTS = {
  compute: "compute", recompute: "recomputation", tensor: "tensor parallelism",
  context: "context parallelism", expert: "expert parallelism", data: "data parallelism",
  transfers: "pipeline transfers", bubble: "bubble", optimizer: "optimizer", overhead: "overhead",
};
const at = (id) => document.getElementById(id);

/* Sliders are powers of two or shares of the catalog; `exact` holds what a change asked for between
   them. Everything asked for is in the address; of a file of one's own, that is its name. */
const FLAG_FIELDS = {
  "--tp": "tp", "--pp": "pp", "--dp": "dp", "--cp": "cp", "--ep": "ep", "--etp": "etp",
  "--virtual-stages": "virtual_stages", "--micro-batch": "micro_batch", "--zero": "zero",
  "--state-copies": "state_copies", "--recompute": "recompute", "--schedule": "schedule",
  "--mapping": "mapping",
};
const OWN = ["config", "job", "clusterFile"];  // files
const SLIDERS = ["devices", "memory", "bandwidth", "batch", "sequence"];

class Explorer {
  constructor(choices) {
    this.choices = choices;
    this.config = this.clusterFile = this.job = null;
    this.files = new Map();  // by kind and name, for whoever goes back to them
    this.exact = {};
    this.last = this.before = this.pinned = null;  // figures of this plan, of the one before, pinned
    fill(at("model"), choices.models.map(({ name }) => name), "llama3-70b");
    fill(at("cluster"), choices.clusters.map(({ name }) => name), "dgx-h100");
    for (const name of choices.frameworks) at("framework").append(new Option(name, name));
    for (const [name, known] of Object.entries(choices.options)) at("options").append(optionField(name, known));
    if (window.innerWidth <= NARROW_PX) at("asked").open = false;
    this.listen();
    this.restore();
  }

  listen() {
    at("controls").addEventListener("submit", (event) => event.preventDefault());
    for (const id of SLIDERS) {
      at(id).addEventListener("input", () => { delete this.exact[id]; this.changed(); });
    }
    at("count").addEventListener("change", () => {
      const count = Math.round(Number(at("count").value));
      if (count >= 1) this.exact.devices = count;
      this.changed();
    });
    at("framework").addEventListener("change", () => this.changed());
    at("options").addEventListener("change", () => this.changed());
    at("model").addEventListener("change", () => { this.config = this.job = null; this.showUploaded(); this.changed(); });
    at("cluster").addEventListener("change", () => { this.clusterFile = null; this.showUploaded(); this.chooseCluster(); });
    at("reset").addEventListener("click", () => this.reset());
    at("config").addEventListener("change", () => this.readFile(at("config").files[0]));
    at("forget").addEventListener("click", () => { this.forget(); this.changed(); });
    at("copy-command").addEventListener("click", () => this.copyCommand());
    at("export").addEventListener("click", () => this.exportPlan());
    at("theme").addEventListener("change", () => this.applyTheme());
    at("stop").addEventListener("click", () => this.stop());
    at("longer").addEventListener("click", () => this.ask(this.question));
    at("pin").addEventListener("click", () => this.pin());
    at("unpin").addEventListener("click", () => { this.pinned = null; this.showPinned(); });
    at("compare").addEventListener("click", () => this.showPage(`${this.pinned.id}/${this.id}`));
    window.addEventListener("popstate", () => this.restore());
    window.addEventListener("message", (event) => {
      if (event.origin === location.origin && typeof event.data?.options === "string") this.tryOptions(event.data.options);
    });
    for (const kind of ["dragover", "dragleave", "drop"]) {
      window.addEventListener(kind, (event) => {
        event.preventDefault();
        at("drop").hidden = kind !== "dragover";
        if (kind === "drop" && event.dataTransfer.files.length) this.readFile(event.dataTransfer.files[0]);
      });
    }
  }

  get cluster() {
    return this.choices.clusters.find(({ name }) => name === at("cluster").value);
  }

  /** Sliders start at the catalog's figures; devices double from one node to what there can be. */
  chooseCluster(resize = true) {
    if (resize) this.sizeDevices();
    for (const id of ["memory", "bandwidth"]) { at(id).value = 100; delete this.exact[id]; }
    if (resize) delete this.exact.devices;
    this.changed();
  }

  sizeDevices() {
    const { devices_per_node: node, most_devices: most } = this.cluster;
    const before = Number(at("devices").value) || 3;
    at("devices").min = 0;
    at("devices").max = Math.max(Math.min(Math.floor(Math.log2(most / node)), 10), 0);
    at("devices").disabled = at("devices").max === "0";
    at("devices").value = Math.min(before, Number(at("devices").max));
    this.offerConstants();
  }

  /** Only the constants that were fitted to the devices; to those of one's own file, any may be. */
  offerConstants() {
    const control = at("option-calibration"), known = this.cluster.calibrations;
    for (const option of control.options) {
      option.hidden = option.disabled = option.value !== "" && !this.clusterFile && !known.includes(option.value);
    }
    if (control.selectedOptions[0]?.disabled) control.value = "";
  }

  reset() {
    for (const control of at("options").querySelectorAll("[name]")) control.value = "";
    this.chooseCluster(false);
  }

  scaled(id, catalog) {
    const steps = Number(at(id).value) - 100;
    return steps === 0 ? catalog : catalog * RANGE ** (steps / 100);
  }

  get question() {
    const { cluster, exact } = this;
    const asked = {
      cluster: cluster.name,
      devices: exact.devices ?? cluster.devices_per_node * 2 ** Number(at("devices").value),
      global_batch: exact.batch ?? 2 ** Number(at("batch").value),
      sequence: exact.sequence ?? 2 ** Number(at("sequence").value),
      memory_gib: exact.memory ?? Math.min(Math.max(this.scaled("memory", cluster.memory_gib), 1), 4096),
      bandwidth_gb_per_s: this.scaled("bandwidth", cluster.bandwidth_gb_per_s),
    };
    if (at("memory").value === "100" && exact.memory === undefined) delete asked.memory_gib;
    if (at("bandwidth").value === "100") delete asked.bandwidth_gb_per_s;
    if (at("framework").value) asked.framework = at("framework").value;
    const options = Object.fromEntries([...at("options").querySelectorAll("[name]")]
      .map(({ name, value }) => [name, value.trim()]).filter(([, value]) => value));
    if (Object.keys(options).length) asked.options = options;
    if (this.clusterFile) asked.cluster_file = this.clusterFile.text;
    if (this.job) return { ...asked, job: { name: this.job.name, text: this.job.text } };
    return { ...asked, ...(this.config ? { config: this.config.content } : { model: at("model").value }) };
  }

  // -- the address: what is asked, for back, bookmarks and whoever gets the link --------------------

  get address() {
    const kept = new URLSearchParams({ model: at("model").value, cluster: at("cluster").value });
    for (const id of [...SLIDERS, "framework"]) if (at(id).value) kept.set(id, at(id).value);
    for (const [id, value] of Object.entries(this.exact)) kept.set(`exact.${id}`, value);
    for (const kind of OWN) if (this[kind]) kept.set(`file.${kind}`, this[kind].name);
    for (const { name, value } of at("options").querySelectorAll("[name]")) {
      if (value.trim()) kept.set(`option.${name}`, value.trim());
    }
    return `?${kept}`;
  }

  restore() {
    const kept = new URLSearchParams(location.search);
    const offered = (id) => [...at(id).options].some(({ value }) => value === kept.get(id));
    for (const id of ["model", "cluster", "framework"]) if (kept.has(id) && offered(id)) at(id).value = kept.get(id);
    this.sizeDevices();
    for (const id of ["memory", "bandwidth"]) at(id).value = 100;
    for (const id of SLIDERS) if (kept.has(id)) at(id).value = kept.get(id);
    this.exact = {};
    for (const id of ["devices", "memory", "sequence", "batch"]) {
      const value = Number(kept.get(`exact.${id}`));
      if (value > 0) this.exact[id] = value;
    }
    for (const control of at("options").querySelectorAll("[name]")) {
      control.value = kept.get(`option.${control.name}`) ?? "";
      if (control.value) at("more").open = true;
    }
    const lacking = [];
    for (const kind of OWN) {
      const name = kept.get(`file.${kind}`);
      this[kind] = this.files.get(`${kind} ${name}`) ?? null;
      if (name !== null && !this[kind]) lacking.push(name);
    }
    this.showUploaded();
    this.isRestored = true;
    this.changed();
    if (lacking.length) {
      this.refuseAtOnce(lacking.map((path) => ({ path, problem: "only its name is in the address: choose the file, or drop it here" })));
    }
  }

  /** Ask for what a row of "change this" says, in the controls that stand for its options. */
  tryOptions(text) {
    const words = text.split(/\s+/);
    for (let i = 0; i + 1 < words.length; i += 2) {
      const [flag, value] = [words[i], words[i + 1]], name = FLAG_FIELDS[flag];
      if (name) at(`option-${name}`).value = value;
      else if (flag === "--devices") this.exact.devices = Number(value);
      else if (flag === "--sequence") this.exact.sequence = Number(value);
      else if (flag === "--memory") this.exact.memory = parseFloat(value) * (value.endsWith("TiB") ? 1024 : 1);
      if (name) at("more").open = true;
    }
    this.changed();
  }

  changed() {
    const { question, cluster } = this;
    const show = (id, text, spoken) => {
      const output = document.querySelector(`output[for=${id}]`);
      if (output) output.textContent = text;
      at(id).setAttribute("aria-valuetext", spoken ?? text);
    };
    at("count").value = question.devices;
    show("devices", `${question.devices} devices`);
    const stated = (asked, catalog, unit) => (asked === undefined && this.clusterFile
      ? `as in ${this.clusterFile.name}` : `${(asked ?? catalog).toPrecision(3)} ${unit}`);
    show("memory", stated(question.memory_gib, cluster.memory_gib, "GiB"));
    show("bandwidth", stated(question.bandwidth_gb_per_s, cluster.bandwidth_gb_per_s, "GB/s"));
    show("batch", question.global_batch.toLocaleString("en"), `${question.global_batch} sequences`);
    show("sequence", question.sequence.toLocaleString("en"), `${question.sequence} tokens`);
    const line = (
      `${(this.job ?? this.config)?.name ?? question.model} on ${question.devices} ${question.devices === 1 ? "device" : "devices"} of ${this.clusterFile?.name ?? cluster.name}`);
    at("asked-line").textContent = line;
    const shown = (id) => document.querySelector(`output[for=${id}]`)?.textContent ?? "";
    const options = Object.entries(question.options ?? {}).map(([name, value]) => `${name} ${value}`);
    this.asked = [
      line, `${shown("memory")} each`, shown("bandwidth"), `${shown("batch")} × ${shown("sequence")} tokens`,
      options.join(", ") || "no options",
    ];
    at("answer").setAttribute("aria-busy", "true");
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      if (!this.isRestored && this.address !== location.search) history.pushState(null, "", this.address);
      this.isRestored = false;
      this.ask(question);
    }, WAIT_MS);
  }

  /** A search tells how it stands, then its plan, then the plan with its reasons. The question
      before is given up, which the server notices. */
  async ask(question) {
    this.pending?.abort();
    this.before = this.last;
    const { signal } = this.pending = new AbortController();
    at("answer").setAttribute("aria-busy", "true");
    at("longer").hidden = true;
    at("state").textContent = "planning …";
    this.isStopped = false;
    this.ticket = [...crypto.getRandomValues(new Uint8Array(8))].map((n) => n.toString(16).padStart(2, "0")).join("");
    const began = performance.now();
    try {
      const response = await this.post({ ...question, ticket: this.ticket }, signal);
      if (!response.ok) this.refuse((await response.json()).faults);
      else for await (const line of linesOf(response)) this.hear(line, performance.now() - began);
    } catch (error) {
      if (signal.aborted) return;
      this.refuse([{ path: "server", problem: "does not answer" }]);
    }
    at("stop").hidden = true;
    at("answer").setAttribute("aria-busy", "false");
  }

  async post(question, signal) {
    for (;;) {
      const response = await fetch("/api/searches", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(question),
        signal,
      });
      if (response.status !== 429) return response;
      await new Promise((done) => setTimeout(done, 4 * WAIT_MS));
    }
  }

  hear({ told, plan, faults }, tookMs) {
    if (faults) this.refuse(faults);
    if (plan) this.show(plan, tookMs);
    if (plan?.is_complete) at("stop").hidden = true;
    if (!told || this.isStopped) return;
    at("stop").hidden = told.stage !== "searching";
    const best = told.step_time_s === null ? "no plan yet"
      : `best ${seconds(told.step_time_s)}, ${told.gap === null ? "no bound yet" : `gap so far ${percent(told.gap)}`}`;
    at("state").textContent = told.stage === "searching"
      ? `searching, ${told.elapsed_s.toFixed(0)} s: ${best}` : "asking what each choice buys …";
  }

  stop() {
    at("stop").hidden = this.isStopped = true;
    at("state").textContent = "stopping …";
    fetch(`/api/searches/${this.ticket}/stop`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: "{}",
    });
  }

  /** Without asking: no answer may come after it. */
  refuseAtOnce(faults) {
    clearTimeout(this.timer);
    this.pending?.abort();
    this.refuse(faults);
    at("stop").hidden = true;
    at("answer").setAttribute("aria-busy", "false");
  }

  /** A refusal stands alone: the answer to another question would seem to be that to this one. */
  refuse(faults) {
    at("faults").replaceChildren(...faults.map(({ path, problem }) => item(`${path}: ${problem}`)));
    document.querySelector(".figures").replaceChildren();
    at("layout").textContent = at("reason").textContent = "";
    at("state").textContent = "refused";
    at("frames").replaceChildren();
    this.showNotes([]);
    this.last = null;
    this.offer(null);
    this.showPinned();
    document.documentElement.dataset.ready = "yes";
  }

  show({ id, document: plan, command, command_note: note, targets, is_complete: isComplete }, tookMs) {
    at("faults").replaceChildren();
    this.showNotes([...(this.job?.notes ?? []), ...(plan.warnings ?? [])]);
    this.command = command;
    this.commandNote = note;
    this.plan = plan;
    this.showFigures(plan);
    const ended = isComplete ? "" : plan.step_time_s ? "the best so far: " : "the search was ended before a plan was found, and none is excluded";
    at("layout").textContent = plan.step_time_s ? `${ended}${layoutOf(plan)}`
      : isComplete ? `no plan: ${plan.status}` : ended;
    at("reason").textContent = reasonOf(plan);
    at("state").textContent = `planned in ${(tookMs / 1000).toFixed(1)} s`;
    at("longer").hidden = isComplete;
    const known = at("target").value;
    at("target").replaceChildren();
    const others = this.choices.frameworks.filter((name) => !targets.includes(name));
    if (!targets.length) at("target").append(new Option("none as it is", ""));
    fill(at("target"), [...targets, ...others], targets.includes(known) ? known : targets[0]);
    this.offer(id);
    this.showPinned();
    this.showPage(id);
  }

  /** What is to be said beside the answer, behind one line. */
  showNotes(notes) {
    at("notes").hidden = !notes.length;
    at("notes").querySelector("summary").textContent = notes.length === 1 ? "1 note" : `${notes.length} notes`;
    at("notes").querySelector("ul").replaceChildren(...notes.map(item));
  }

  // -- a plan to compare with -----------------------------------------------------------------------

  pin() {
    this.pinned = { id: this.id, figures: this.last, layout: layoutOf(this.plan), asked: this.asked };
    this.showPinned();
  }

  showPinned() {
    const { pinned, last, plan } = this;
    at("pinned").hidden = pinned === null;
    if (pinned === null) return;
    const now = last ?? {}, was = pinned.figures;
    const row = (name, before, after, [words, tone] = ["", ""]) => {
      const made = document.createElement("tr"), head = document.createElement("th");
      head.scope = "row";
      head.textContent = name;
      made.append(head);
      for (const text of [before, after, words]) made.insertCell().textContent = text;
      made.lastChild.className = tone;
      return made;
    };
    const none = (value, words) => (value === undefined ? "" : words(value));
    const differs = pinned.asked.map((part, index) => part !== this.asked[index]);
    const asked = (parts) => parts.filter((_, index) => differs[index]).join(" · ") || "the same";
    at("pinned").querySelector("tbody").replaceChildren(
      row("asked", asked(pinned.asked), asked(this.asked)),
      row("step", seconds(was.step), none(now.step, seconds), change(now.step, was.step, -1)),
      row("tokens/s", count(was.tokens), none(now.tokens, count), change(now.tokens, was.tokens, 1)),
      row("MFU", share(was.mfu), none(now.mfu, share), change(now.mfu, was.mfu, 1)),
      row("peak memory", gib(was.memory), none(now.memory, gib), change(now.memory, was.memory, 0)),
      row("plan", pinned.layout, last && plan.step_time_s ? layoutOf(plan) : "no plan"),
    );
    at("compare").hidden = !this.id || this.id === pinned.id;
  }

  showFigures(plan) {
    const now = {
      step: plan.step_time_s, tokens: plan.tokens_per_s, mfu: plan.mfu,
      memory: plan.peak_memory_bytes_per_rank?.length
        ? Math.max(...plan.peak_memory_bytes_per_rank) : undefined,
    };
    const before = this.before ?? {};
    const figures = now.step === undefined ? [] : [
      figure("step", seconds(now.step), change(now.step, before.step, -1)),
      figure("tokens/s", Math.round(now.tokens).toLocaleString("en"), change(now.tokens, before.tokens, 1)),
      figure("MFU", `${(100 * now.mfu).toFixed(1)}%`, change(now.mfu, before.mfu, 1)),
      figure("peak memory", gib(now.memory), change(now.memory, before.memory, 0)),
      figure("gap", plan.lower_bound_s ? gapOf(plan) : "not yet known", ["", ""]),
    ];
    document.querySelector(".figures").replaceChildren(...figures);
    this.last = now.step === undefined ? this.last : now;
  }

  offer(id) {
    const isPlanned = id !== null && Boolean(this.plan?.step_time_s);
    at("pin").hidden = at("exports").hidden = !isPlanned;
    at("save-page").hidden = at("save-plan").hidden = at("copy-command").hidden = id === null;
    this.id = id;
    if (id === null) return;
    at("save-page").href = `/pages/${id}`;
    at("save-plan").href = `/api/plans/${id}`;
  }

  /** The new page is loaded behind the old one and takes its place where the reader was. */
  showPage(id) {
    const frames = at("frames"), coming = document.createElement("iframe");
    for (const given_up of frames.querySelectorAll(".coming")) given_up.remove();
    coming.title = "The page of the plan";
    coming.className = "coming";
    coming.addEventListener("load", () => {
      if (!coming.isConnected) return;
      const old = frames.querySelector("iframe:not(.coming)");
      this.applyTheme(coming);
      const top = old?.contentWindow.scrollY ?? 0;
      coming.contentWindow.scrollTo({ top, behavior: "instant" });
      coming.classList.remove("coming");
      old?.remove();
      document.documentElement.dataset.ready = "yes";
    });
    coming.src = `/pages/${id}`;
    frames.append(coming);
  }

  applyTheme(frame = document.querySelector("iframe")) {
    const theme = at("theme").value;
    document.documentElement.dataset.theme = theme;
    const inside = frame?.contentDocument?.getElementById("theme");
    if (!inside || inside.value === theme) return;
    inside.value = theme;
    inside.dispatchEvent(new Event("change"));
  }

  /** A config.json, or the TOML file of a cluster, by what it says. */
  async readFile(file) {
    if (!file) return;
    const text = await file.text();
    if (/^\s*\[+(pool|level|accelerator)\b/m.test(text)) {
      this.clusterFile = { name: file.name, text };
    } else if (file.name.endsWith(".json") && !text.includes("zero_optimization")) {
      try {
        this.config = { name: file.name, content: JSON.parse(text) };
        this.job = null;
      } catch {
        this.refuseAtOnce([{ path: file.name, problem: "is not JSON" }]);
        return;
      }
    } else if (!await this.readJob(file.name, text)) {
      return;
    }
    for (const kind of OWN) if (this[kind]) this.files.set(`${kind} ${this[kind].name}`, this[kind]);
    this.showUploaded();
    this.changed();
  }

  /** A framework's own file: its model, its sizes and its degrees, to start from; whether it is one. */
  async readJob(name, text) {
    const response = await fetch("/api/jobs", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ name, text }),
    });
    const stated = await response.json();
    this.reset();
    this.job = response.ok ? { name, text, notes: stated.notes } : null;
    this.config = null;
    if (!response.ok) {
      this.showUploaded();
      this.refuseAtOnce(stated.faults);
      return false;
    }
    for (const [id, value] of [["devices", stated.devices], ["batch", stated.global_batch], ["sequence", stated.sequence]]) {
      if (value) this.exact[id] = value;
    }
    for (const [option, value] of Object.entries(stated.options)) {
      const control = at(`option-${option}`);
      if (control.options && ![...control.options].some((each) => each.value === value)) fill(control, [value]);
      control.value = value;
    }
    at("more").open = true;
    return true;
  }

  showUploaded() {
    const names = [this.job ?? this.config, this.clusterFile].filter(Boolean).map(({ name }) => name);
    at("uploaded").hidden = names.length === 0;
    at("uploaded").querySelector("span").textContent = names.join(", ");
    this.offerConstants();
  }

  forget() {
    this.config = this.clusterFile = this.job = null;
    at("config").value = "";
    this.showUploaded();
  }

  /** Files for a framework; what it cannot express is said in place of them. */
  async exportPlan() {
    const target = at("target").value;
    if (!target) return;
    const response = await fetch(`/api/plans/${this.id}/exports/${target}`);
    if (!response.ok) {
      const { faults } = await response.json();
      at("faults").replaceChildren(...faults.map(({ path, problem }) => item(`${path}: ${problem}`)));
      at("state").textContent = `no files for ${target}`;
      return;
    }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await response.blob());
    link.download = `${target}.zip`;
    link.click();
    URL.revokeObjectURL(link.href);
    at("state").textContent = `saved ${target}.zip`;
  }

  async copyCommand() {
    try {
      await navigator.clipboard.writeText(this.command);
      at("state").textContent = ["command copied", this.commandNote].filter(Boolean).join("; ");
    } catch {
      at("state").textContent = this.command;
    }
  }
}

// -- words -----------------------------------------------------------------------------------------

function fill(select, names, chosen) {
  for (const name of names) select.append(new Option(name, name, name === chosen, name === chosen));
}

function item(words) {
  const made = document.createElement("li");
  made.textContent = words;
  return made;
}

function figure(label, value, [words, tone]) {
  const made = document.createElement("div");
  made.className = "figure";
  for (const [tag, text] of [["span", label], ["strong", value], ["em", words]]) {
    const part = document.createElement(tag);
    part.textContent = text;
    made.append(part);
  }
  if (tone) made.lastChild.className = tone;
  return made;
}

/** By how much a figure changed; `good` is the sign of a change for the better, 0 for neither. */
function change(now, before, good) {
  if (!before || !now || Math.abs(now / before - 1) < 5e-4) return ["", ""];
  const share = now / before - 1;
  const tone = good === 0 ? "" : share * good > 0 ? "better" : "worse";
  return [`${share > 0 ? "+" : "−"}${(100 * Math.abs(share)).toFixed(1)}%`, tone];
}

function seconds(value) {
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
    if (value >= size) return `${Number((value / size).toPrecision(4))} ${unit}`;
  }
  return `${value} s`;
}

/** Rounded up, so that it stays true. */
function gapOf({ status, gap = 0 }) {
  const most = Math.max(gap, 0);
  return status === "optimal" ? "0, proved" : `≤ ${percent(most)}`;
}

function percent(share) { return `${(Math.ceil(1e4 * share) / 100).toFixed(2)}%`; }

function gib(bytes) { return `${(bytes / 2 ** 30).toFixed(2)} GiB`; }

function degrees(p) {
  const words = [`tensor ${p.tensor}`, `pipeline ${p.pipeline}`, `data ${p.data}`];
  if (p.context > 1) words.push(`context ${p.context}`);
  if (p.expert > 1) words.push(`expert ${p.expert}`);
  if (p.virtual_stages > 1) words.push(`virtual ${p.virtual_stages}`);
  return `${words.join(" × ")}, ZeRO-${p.zero_stage}`;
}

function layoutOf(plan) {
  const layout = plan.parallelism ? degrees(plan.parallelism) : "degrees per stage";
  return `${layout} · microbatch ${plan.micro_batch} · ${plan.schedule} · ${plan.devices_used} devices used`;
}

function reasonOf(plan) {
  if (!plan.step_time_s) {
    const fixes = (plan.relaxations ?? []).map(({ change, description }) => `${change}: ${description}`);
    const known = [plan.binding?.description, ...fixes].filter(Boolean);
    if (plan.status === "infeasible" && !fixes.length) known.push("no single change is enough");
    return known.join(" · ");
  }
  const parts = Object.entries(plan.time_by_part_s ?? {}).sort(([, a], [, b]) => b - a).slice(0, 4);
  const spent = parts.filter(([, s]) => s / plan.step_time_s >= 1e-3).map(([name, s]) => (
    `${TIME_PARTS[name] ?? name} ${(100 * s / plan.step_time_s).toFixed(1)}%`));
  return `where the step goes: ${spent.join(", ")}`;
}

function share(value) { return `${(100 * value).toFixed(1)}%`; }
function count(value) { return Math.round(value).toLocaleString("en"); }

/** A field of one option: a list to choose from, or text such as 8 or 4..8; empty is any. */
function optionField(name, known) {
  const made = document.createElement("div"), label = document.createElement("label");
  const control = document.createElement(known.length ? "select" : "input");
  made.className = "field";
  label.htmlFor = control.id = `option-${name}`;
  label.textContent = name.replaceAll("_", " ");
  control.name = name;
  if (known.length) fill(control, ["", ...known], "");
  else Object.assign(control, { type: "text", placeholder: "any", maxLength: 60, autocomplete: "off" });
  if (known.length) control.options[0].textContent = "any";
  made.append(label, control);
  return made;
}

/** JSON values, one a line, as they come. */
async function* linesOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
  if (rest.trim()) yield JSON.parse(rest);
}

async function start() {
  const response = await fetch("/api/choices");
  window.explorer = new Explorer(await response.json());
}

start();
