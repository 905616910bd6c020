/* Type here: a small network in the page reads what the reader types, and shows what its norms do.

   <div class="network" data-controls="model shift uncentred held removed" data-text="…">words for those without
   scripts</div>.  network.js computes; twins.js has the weights and is loaded when a host comes into view. */
"use strict";
{
  const HERE = document.currentScript.src;
  const SVG = "http://www.w3.org/2000/svg";
  const make = (parent, name, attributes = {}, text) => {
    const element = parent instanceof SVGElement || name === "svg" ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return parent.appendChild(element);
  };
  const MODELS = { layer: "with LayerNorm", rms: "with RMSNorm", converted: "the first, converted to RMSNorm" };
  const QUANTITIES = {
    angle: ["angle to (1, …, 1), degrees", (v) => v.toFixed(1)],
    occupancy: ["occupancy, d cos²", (v) => v.toPrecision(2)],
    length: ["length", (v) => v.toFixed(1)],
    largest: ["largest entry", (v) => v.toFixed(1)],
  };
  const shown = (byte) => {
    if (byte === 10) return "⏎";
    if (byte === 32) return "␣";
    return byte > 32 && byte < 127 ? String.fromCharCode(byte) : byte.toString(16).toUpperCase().padStart(2, "0");
  };
  const inWords = (name) =>
    name === "ln_f" ? "the final norm" : name.replace(/h\.(\d+)\.(ln_1|ln_2|attn|mlp)/, (_, l, part) => `block ${Number(l) + 1}, ${{ ln_1: "before attention", ln_2: "before the MLP", attn: "attention", mlp: "MLP" }[part]}`);

  let loading;
  const load = () =>
    (loading ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = HERE.replace("type-here.js", "twins.js");
      script.onload = () => {
        try {
          const found = Object.fromEntries(Object.entries(normgeom.saved).map(([name, saved]) => [name, normgeom.unpack(saved)]));
          resolve({ ...found, converted: normgeom.toRmsNorm(found.layer) });
        } catch (error) {
          reject(error);
        }
      };
      script.onerror = () => reject(new Error("twins.js is not there"));
      document.head.append(script);
    }));

  /* What a run shows: of the network as the reader has changed it, beside the untouched one. */
  const compute = (networks, { text, model, shift, uncentred, held, removed }) => {
    const network = networks[model];
    const bytes = [...new TextEncoder().encode(text)];
    const ids = bytes.slice(-network.length);
    if (!ids.length) return { said: "Type something: the network predicts the next byte from those before it." };
    const plain = model === "converted" ? networks.layer : network;
    const reference = normgeom.forward(plain, ids);
    const own = model === "converted" ? normgeom.forward(network, ids) : reference;
    const all = normgeom.sites(network);
    const run = normgeom.forward(network, ids, {
      shift,
      uncentred: uncentred === "everywhere" ? all : uncentred ? [uncentred] : [],
      held: held ? Object.fromEntries(all.map((name) => [name, own.sites[name].scales])) : {},
      removed: removed || undefined,
    });
    const cut = bytes.length > ids.length ? `It reads the last ${ids.length} bytes of ${bytes.length}.` : "";
    return { network, ids, reference: own, run, ...normgeom.apart(reference.logits, run.logits, network.vocabulary), said: cut };
  };
  globalThis.normgeom.typed = compute;

  const setUp = (host, networks) => {
    const wanted = (host.dataset.controls ?? "model shift uncentred held removed").split(" ");
    const state = { text: host.dataset.text ?? "", model: "layer", shift: 0, uncentred: "", held: false, removed: "", quantity: "angle", at: Infinity };
    host.replaceChildren();
    const label = (parent, words) => make(parent, "label", {}, words);
    const area = make(label(host, "Your text"), "textarea", { rows: 3, spellcheck: "false" });
    area.value = state.text;
    const said = make(host, "p", { class: "network-said", role: "status" });
    const strip = make(host, "div", { class: "network-strip", role: "listbox", "aria-label": "Bytes that the network reads; choose a position" });
    const next = make(host, "ol", { class: "network-next", "aria-label": "Most probable next bytes" });
    const controls = make(host, "div", { class: "network-controls" });
    const choose = (name, words, options) => {
      const select = make(label(controls, words), "select");
      for (const [value, text] of Object.entries(options)) make(select, "option", { value }, text);
      select.addEventListener("input", () => change({ [name]: select.value }));
      return select;
    };
    const inputs = {};
    const sites = normgeom.sites(networks.layer);
    const named = (names) => Object.fromEntries(names.map((name) => [name, inWords(name)]));
    if (wanted.includes("model")) inputs.model = choose("model", "The network", MODELS);
    if (wanted.includes("shift")) {
      const wrap = label(controls, "Add to every entry of the stream");
      inputs.shift = make(wrap, "input", { type: "range", min: -20, max: 20, step: 0.5 });
      make(wrap, "output");
      inputs.shift.addEventListener("input", () => change({ shift: Number(inputs.shift.value) }));
    }
    if (wanted.includes("uncentred")) inputs.uncentred = choose("uncentred", "Leave the subtraction out", { "": "nowhere", everywhere: "at every norm", ...named(sites) });
    if (wanted.includes("removed")) inputs.removed = choose("removed", "Remove a part", { "": "none", ...named(normgeom.parts(networks.layer)) });
    if (wanted.includes("held")) {
      inputs.held = make(label(controls, "Hold all scales as they were"), "input", { type: "checkbox" });
      inputs.held.addEventListener("input", () => change({ held: inputs.held.checked }));
    }
    const effect = make(host, "p", { class: "network-effect", "aria-live": "polite" });
    const quantity = make(label(host, "At each norm"), "select");
    for (const [value, [words]] of Object.entries(QUANTITIES)) make(quantity, "option", { value }, words);
    quantity.addEventListener("input", () => change({ quantity: quantity.value }));
    const svg = make(host, "svg", { viewBox: "0 0 640 230", role: "img", class: "network-chart" });
    const fold = make(host, "details");
    make(fold, "summary", {}, "The numbers");
    const table = make(fold, "table");

    let waiting;
    const change = (changes) => {
      Object.assign(state, changes);
      cancelAnimationFrame(waiting);
      waiting = requestAnimationFrame(paint);
    };
    area.addEventListener("input", () => change({ text: area.value, at: Infinity }));

    const paint = () => {
      const found = compute(networks, state);
      host.found = found;
      said.textContent = found.said;
      for (const part of [strip, next, effect, svg, fold]) part.hidden = !found.run;
      svg.style.display = found.run ? "" : "none";
      if (inputs.model) inputs.model.value = state.model;
      if (inputs.shift) {
        inputs.shift.value = state.shift;
        inputs.shift.nextElementSibling.textContent = String(state.shift).replace("-", "−");
      }
      if (inputs.uncentred) {
        inputs.uncentred.disabled = state.model !== "layer";
        inputs.uncentred.value = state.uncentred;
      }
      if (inputs.removed) inputs.removed.value = state.removed;
      if (inputs.held) inputs.held.checked = state.held;
      if (!found.run) return;
      const at = Math.min(state.at, found.ids.length - 1);
      list(found, at);
      bars(found, at);
      tell(found, at);
      chart(found, at);
    };
    const list = ({ ids }, at) => {
      strip.replaceChildren();
      ids.forEach((byte, t) => {
        const cell = make(strip, "button", { type: "button", role: "option", "aria-selected": t === at, tabindex: t === at ? 0 : -1, "aria-label": `position ${t + 1}, ${shown(byte)}` }, shown(byte));
        cell.addEventListener("click", () => change({ at: t }));
      });
    };
    strip.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (!step) return;
      event.preventDefault();
      const last = host.found.ids.length - 1;
      state.at = Math.min(last, Math.max(0, Math.min(state.at, last) + step));
      paint();
      strip.children[state.at].focus();
    });
    const bars = ({ run, network }, at) => {
      const p = normgeom.softmax(run.logits.subarray(at * network.vocabulary, (at + 1) * network.vocabulary));
      const best = [...p.keys()].sort((a, b) => p[b] - p[a]).slice(0, 6);
      next.replaceChildren();
      for (const byte of best) {
        const item = make(next, "li", { style: `--share: ${(100 * p[byte]).toFixed(1)}%` });
        make(item, "code", {}, shown(byte));
        make(item, "span", {}, `${(100 * p[byte]).toFixed(1)} %`);
      }
      state.token = best[0];
    };
    const number = (v) => (v !== 0 && (Math.abs(v) < 0.001 || Math.abs(v) >= 1e4) ? v.toExponential(0) : v.toPrecision(2)).replace("-", "−");
    const tell = (found, at) => {
      const { network, reference, run, divergence, change: moved } = found;
      const touched = state.shift || state.uncentred || state.held || state.removed || state.model === "converted";
      const words = [touched ? `Against the ${state.model === "converted" ? "unconverted" : "untouched"} network: a divergence of ${number(divergence)} nats a byte, and no logit moves by more than ${number(moved)}.` : "Nothing is changed yet."];
      if (state.removed) {
        const token = [...reference.logits.subarray(at * network.vocabulary, (at + 1) * network.vocabulary).entries()].reduce((a, b) => (b[1] > a[1] ? b : a))[0];
        const { frozen, direct } = normgeom.effects(network, reference, state.removed, at, token);
        const above = (logits) => {
          const row = logits.subarray(at * network.vocabulary, (at + 1) * network.vocabulary);
          return row[token] - row.reduce((a, b) => a + b, 0) / network.vocabulary;
        };
        words.push(`Of the logit of ${shown(token)} above the mean, this part is credited with ${number(frozen)} while the scale is held; without it at the final norm ${number(direct)} are lost; without it in the whole network ${number(above(reference.logits) - above(run.logits))}.`);
      }
      effect.textContent = words.join(" ");
    };
    const chart = ({ network, run, reference }, at) => {
      const d = network.width;
      const names = normgeom.sites(network);
      const looks = (from, side) => names.map((name) => normgeom.look(from.sites[name][side].subarray(at * d, (at + 1) * d)));
      const series = { before: looks(run, "in"), after: looks(run, "out"), untouched: looks(reference, "in") };
      const values = Object.fromEntries(Object.entries(series).map(([name, of]) => [name, of.map((v) => v[state.quantity])]));
      const every = Object.values(values).flat();
      const [low, high] = state.quantity === "angle" ? [0, 180] : [Math.min(0, ...every), Math.max(...every) * 1.05 || 1];
      const left = (i) => 60 + (i * 540) / (names.length - 1);
      const top = (v) => 190 - (170 * (v - low)) / (high - low);
      svg.replaceChildren();
      for (const v of state.quantity === "angle" ? [0, 90, 180] : [low, high]) {
        make(svg, "line", { x1: 50, x2: 615, y1: top(v), y2: top(v), class: "grid" });
        make(svg, "text", { x: 44, y: top(v) + 5, "text-anchor": "end" }, QUANTITIES[state.quantity][1](v).replace("-", "−").replace(".0", ""));
      }
      names.forEach((name, i) => make(svg, "text", { x: left(i), y: 214, "text-anchor": "middle" }, name === "ln_f" ? "final" : `${Number(name[2]) + 1}${name.endsWith("1") ? "a" : "m"}`));
      for (const [name, of] of Object.entries(values)) {
        make(svg, "polyline", { class: name, points: of.map((v, i) => `${left(i)},${top(v)}`).join(" ") });
        if (name !== "untouched") of.forEach((v, i) => make(svg, name === "before" ? "circle" : "rect", { class: name, ...(name === "before" ? { cx: left(i), cy: top(v), r: 5 } : { x: left(i) - 4.5, y: top(v) - 4.5, width: 9, height: 9 }) }));
      }
      const [words, format] = QUANTITIES[state.quantity];
      svg.setAttribute("aria-label", `At position ${at + 1}, ${words}, before and after each norm: ${names.map((name, i) => `${inWords(name)} ${format(values.before[i])} and ${format(values.after[i])}`).join("; ")}.`);
      table.replaceChildren();
      const head = make(table, "tr");
      make(head, "th", {}, "norm");
      for (const [heading] of Object.values(QUANTITIES)) for (const side of ["before", "after"]) make(head, "th", {}, `${heading}, ${side}`);
      names.forEach((name, i) => {
        const row = make(table, "tr");
        make(row, "th", { scope: "row" }, inWords(name));
        for (const [key, [, as]] of Object.entries(QUANTITIES)) for (const side of ["before", "after"]) make(row, "td", {}, as(series[side][i][key]).replace("-", "−"));
      });
    };
    host.change = change;
    paint();
  };

  addEventListener("DOMContentLoaded", () => {
    const seen = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries)
        if (isIntersecting) {
          seen.unobserve(target);
          load().then(
            (networks) => setUp(target, networks),
            (error) => {
              loading = undefined;
              target.prepend(make(target, "p", { role: "alert" }, `The network cannot be loaded: ${error.message}. Build the book anew (make book).`));
            },
          );
        }
    }, { rootMargin: "200px" });
    for (const host of document.querySelectorAll(".network")) seen.observe(host);
  });
}
