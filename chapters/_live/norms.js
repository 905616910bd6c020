/* Norms and a small GPT-2, which the pages compute when a reader moves something or types.

   A vector is an array; the T vectors of a text of T tokens lie one after another in a Float64Array.  All computation
   is in double precision.  Labels in parentheses are the book's. */
"use strict";
globalThis.normgeom = (() => {
  // Apply a norm to a vector: mean, s (the scale), n before gain and bias, y after them (eq-three-steps, eq-rms-norm).
  // Without `centre` the mean stays in numerator and denominator (eq-drop-mean); `held` is a scale to use instead of
  // the vector's own (thm-attribution), and `divide: false` omits the division.
  const norm = (x, { gain, bias, eps, centre = true, divide = true, held }) => {
    const d = x.length;
    let mean = 0;
    for (const v of x) mean += v;
    mean /= d;
    const shift = centre ? mean : 0;
    let square = 0;
    for (const v of x) square += (v - shift) ** 2;
    const s = held ?? Math.sqrt(square / d + eps);
    const n = Array.from(x, (v) => (v - shift) / (divide ? s : 1));
    const y = n.map((v, i) => v * (gain ? gain[i] : 1) + (bias ? bias[i] : 0));
    return { mean, s, n, y };
  };

  // J v with J = G (Π − n nᵀ/d) / s; for RMSNorm, the identity replaces Π (eq-ln-jacobian, eq-rms-jacobian).
  const jacobianTimes = (v, { n, s }, { gain, centre = true }) => {
    const d = v.length;
    let mean = 0;
    let along = 0;
    for (let i = 0; i < d; i++) {
      mean += v[i] / d;
      along += (n[i] * v[i]) / d;
    }
    return Array.from(v, (u, i) => ((gain ? gain[i] : 1) * (u - (centre ? mean : 0) - n[i] * along)) / s);
  };

  // The quantities that a survey measures: angle to 1 in degrees, d cos² (eq-occupancy), length, largest entry.
  const look = (x) => {
    let [sum, square, largest] = [0, 0, 0];
    for (const v of x) {
      sum += v;
      square += v * v;
      if (Math.abs(v) > Math.abs(largest)) largest = v;
    }
    const length = Math.sqrt(square);
    const cos = Math.min(1, Math.max(-1, sum / (length * Math.sqrt(x.length)))); // NaN for the zero vector
    return { angle: (180 / Math.PI) * Math.acos(cos), occupancy: x.length * cos * cos, length, largest };
  };

  // y = x W + b for T vectors; W is stored by rows, one row per entry of x.  Four rows at a time: each sum is loaded
  // and stored once for four products, which is three times as fast.
  const linear = (x, W, b, inner, outer) => {
    const T = x.length / inner;
    const y = new Float64Array(T * outer);
    const row = new Float64Array(outer);
    for (let t = 0; t < T; t++) {
      if (b) row.set(b);
      else row.fill(0);
      for (let i = t * inner; i < (t + 1) * inner; i += 4) {
        const [v0, v1, v2, v3] = [x[i], x[i + 1], x[i + 2], x[i + 3]];
        const k0 = (i - t * inner) * outer;
        const [k1, k2, k3] = [k0 + outer, k0 + 2 * outer, k0 + 3 * outer];
        for (let j = 0; j < outer; j++) row[j] += v0 * W[k0 + j] + v1 * W[k1 + j] + v2 * W[k2 + j] + v3 * W[k3 + j];
      }
      y.set(row, t * outer);
    }
    return y;
  };

  // The tanh approximation, which GPT-2 uses.
  const gelu = (v) => 0.5 * v * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (v + 0.044715 * v * v * v)));

  // Causal attention: each position attends to itself and to those before it.
  const attention = (qkv, d, heads) => {
    const T = qkv.length / (3 * d);
    const size = d / heads;
    const out = new Float64Array(T * d);
    const weights = new Float64Array(T);
    const row = new Float64Array(size);
    for (let h = 0; h < heads; h++) {
      for (let t = 0; t < T; t++) {
        const q = t * 3 * d + h * size;
        let highest = -Infinity;
        for (let u = 0; u <= t; u++) {
          const k = u * 3 * d + d + h * size;
          let score = 0;
          for (let i = 0; i < size; i++) score += qkv[q + i] * qkv[k + i];
          weights[u] = score / Math.sqrt(size);
          highest = Math.max(highest, weights[u]);
        }
        let total = 0;
        for (let u = 0; u <= t; u++) total += weights[u] = Math.exp(weights[u] - highest);
        row.fill(0);
        for (let u = 0; u <= t; u++) {
          const v = u * 3 * d + 2 * d + h * size;
          for (let i = 0; i < size; i++) row[i] += (weights[u] / total) * qkv[v + i];
        }
        out.set(row, t * d + h * size);
      }
    }
    return out;
  };

  const logSoftmax = (logits) => {
    const highest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
    const total = logits.reduce((sum, v) => sum + Math.exp(v - highest), 0);
    return Array.from(logits, (v) => v - highest - Math.log(total));
  };
  const softmax = (logits) => logSoftmax(logits).map(Math.exp);

  // Decode a float16: one sign bit, five exponent bits, ten fraction bits.
  const half = (bits) => {
    const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
    if (exponent === 0) return sign * fraction * 2 ** -24;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  };

  // CRC-32, as zlib computes it.
  const checksum = (bytes) => {
    let rest = ~0;
    for (const byte of bytes) {
      rest ^= byte;
      for (let bit = 0; bit < 8; bit++) rest = (rest >>> 1) ^ (rest & 1 ? 0xedb88320 : 0);
    }
    return ~rest >>> 0;
  };

  // Decode a saved network: its sizes, tensor names and shapes, their numbers in this order in base64, and a checksum.
  const unpack = ({ sizes, tensors, data, crc32 }) => {
    const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
    if (checksum(bytes) !== crc32) throw new Error("its weights in twins.js are damaged");
    const bits = new Uint16Array(bytes.buffer);
    const weights = {};
    let at = 0;
    for (const [name, shape] of tensors) {
      const count = shape.reduce((a, b) => a * b, 1);
      weights[name] = Float64Array.from(bits.subarray(at, at + count), half);
      at += count;
    }
    if (sizes.width % 4) throw new Error(`expected a width divisible by 4, got ${sizes.width}`);
    if (at !== bits.length) throw new Error(`expected ${at} numbers, got ${bits.length}`);
    return { ...sizes, weights };
  };

  // The norms of a network in the order in which they are applied: h.0.ln_1, h.0.ln_2, …, ln_f.
  const sites = ({ layers }) => [
    ...Array.from({ length: layers }, (_, l) => [`h.${l}.ln_1`, `h.${l}.ln_2`]).flat(),
    "ln_f",
  ];
  // The parts that write to the stream.
  const parts = ({ layers }) => [
    "tokens",
    "positions",
    ...Array.from({ length: layers }, (_, l) => [`h.${l}.attn`, `h.${l}.mlp`]).flat(),
  ];

  /* Run the network on token ids, with the reader's changes:
     shift      a number that is added to every entry of the sum of the embeddings (prop-gauge);
     uncentred  names of LayerNorms that do not subtract the mean (eq-drop-mean);
     held       {norm: scales by position}, used instead of the norm's own scales (thm-attribution);
     removed    a part that writes nothing.
     Returns the logits, the vectors at each norm {in, out, scales}, and what each part writes. */
  const forward = (network, ids, { shift = 0, uncentred = [], held = {}, removed } = {}) => {
    const { weights, width: d, layers, heads, vocabulary, eps, kind } = network;
    const T = ids.length;
    const stream = new Float64Array(T * d);
    const found = { sites: {}, parts: {} };
    const write = (name, vectors) => {
      if (name === removed) vectors = new Float64Array(T * d);
      found.parts[name] = vectors;
      for (let i = 0; i < stream.length; i++) stream[i] += vectors[i];
    };
    const through = (name) => {
      const [out, scales] = [new Float64Array(T * d), new Float64Array(T)];
      const [gain, bias] = [weights[`${name}.weight`], weights[`${name}.bias`]];
      const centre = kind === "layer" && !uncentred.includes(name);
      for (let t = 0; t < T; t++) {
        const x = stream.subarray(t * d, (t + 1) * d);
        const { s, y } = norm(x, { gain, bias, eps, centre, held: held[name]?.[t] });
        out.set(y, t * d);
        scales[t] = s;
      }
      found.sites[name] = { in: stream.slice(), out, scales };
      return out;
    };
    const rows = (table, index) => {
      const out = new Float64Array(T * d);
      for (let t = 0; t < T; t++) out.set(table.subarray(index[t] * d, (index[t] + 1) * d), t * d);
      return out;
    };

    write("tokens", rows(weights["wte.weight"], ids));
    write("positions", rows(weights["wpe.weight"], [...ids.keys()]));
    for (let i = 0; i < stream.length; i++) stream[i] += shift;
    for (let l = 0; l < layers; l++) {
      const map = (x, name, inner, outer) =>
        linear(x, weights[`h.${l}.${name}.weight`], weights[`h.${l}.${name}.bias`], inner, outer);
      const seen = attention(map(through(`h.${l}.ln_1`), "attn.c_attn", d, 3 * d), d, heads);
      write(`h.${l}.attn`, map(seen, "attn.c_proj", d, d));
      const hidden = map(through(`h.${l}.ln_2`), "mlp.c_fc", d, 4 * d).map(gelu);
      write(`h.${l}.mlp`, map(hidden, "mlp.c_proj", 4 * d, d));
    }
    // A head without a matrix of its own uses the transpose of the token embedding.
    const last = through("ln_f");
    const head = weights["head.weight"] ?? transposed(weights["wte.weight"], vocabulary, d);
    return { ...found, logits: linear(last, head, weights["head.bias"], d, vocabulary) };
  };

  const transposed = (W, rows, columns) => {
    const out = new Float64Array(W.length);
    for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) out[j * rows + i] = W[i * columns + j];
    return out;
  };

  /* The same function with RMSNorm (thm-to-rms-norm): gains and biases are folded into the readers (prop-folding), the
     mean is removed from everything written (eq-center-writers), and the head gets a matrix of its own. */
  const toRmsNorm = (network) => {
    const { weights, width: d, layers, vocabulary } = network;
    const made = {};
    const centred = (W) => {
      const out = Float64Array.from(W);
      for (let i = 0; i < W.length; i += d) {
        const row = out.subarray(i, i + d);
        const mean = row.reduce((a, b) => a + b, 0) / d;
        row.forEach((v, j) => (row[j] = v - mean));
      }
      return out;
    };
    const fold = (reader, name, W, b, outer) => {
      const [gain, bias] = [weights[`${name}.weight`], weights[`${name}.bias`]];
      made[`${reader}.weight`] = W.map((v, k) => v * gain[Math.floor(k / outer)]);
      made[`${reader}.bias`] = Float64Array.from({ length: outer }, (_, j) => {
        let sum = b ? b[j] : 0;
        for (let i = 0; i < d; i++) sum += bias[i] * W[i * outer + j];
        return sum;
      });
    };
    for (const table of ["wte.weight", "wpe.weight"]) made[table] = centred(weights[table]);
    for (let l = 0; l < layers; l++) {
      for (const [name, reader, outer] of [["ln_1", "attn.c_attn", 3 * d], ["ln_2", "mlp.c_fc", 4 * d]]) {
        const full = `h.${l}.${reader}`;
        fold(full, `h.${l}.${name}`, weights[`${full}.weight`], weights[`${full}.bias`], outer);
      }
      for (const writer of ["attn.c_proj", "mlp.c_proj"]) {
        for (const name of ["weight", "bias"]) {
          const full = `h.${l}.${writer}.${name}`;
          made[full] = centred(weights[full]);
        }
      }
    }
    fold("head", "ln_f", transposed(weights["wte.weight"], vocabulary, d), null, vocabulary);
    return { ...network, kind: "rms", weights: made };
  };

  // What a part adds at position t to the logit of a token, relative to the mean logit: `frozen` with the scale of the
  // final norm held (thm-attribution), `direct` with the scale recomputed without the part (prop-removal).  `run` comes
  // from forward with the same changes.
  const effects = (network, run, part, t, token, { uncentred = [], held = {} } = {}) => {
    const { weights, width: d, vocabulary, eps, kind } = network;
    const gain = weights["ln_f.weight"];
    const head = weights["head.weight"];
    const column = (j, i) => (head ? head[i * vocabulary + j] : weights["wte.weight"][j * d + i]);
    const w = Float64Array.from({ length: d }, (_, i) => {
      let mean = 0;
      for (let j = 0; j < vocabulary; j++) mean += column(j, i) / vocabulary;
      return (gain ? gain[i] : 1) * (column(token, i) - mean);
    });
    const x = run.sites["ln_f"].in.subarray(t * d, (t + 1) * d);
    const c = run.parts[part].subarray(t * d, (t + 1) * d);
    const centre = kind === "layer" && !uncentred.includes("ln_f");
    const read = (vector, scale) =>
      norm(vector, { eps, centre, held: scale }).n.reduce((sum, v, i) => sum + v * w[i], 0);
    const scale = held["ln_f"]?.[t];
    return {
      frozen: read(c, run.sites["ln_f"].scales[t]),
      direct: read(x, scale) - read(x.map((v, i) => v - c[i]), scale),
    };
  };

  // Compare two predictions: the KL divergence at each position, in nats, and the largest change of any logit.
  const apart = (logits, others, vocabulary) => {
    let change = 0;
    const divergences = Array.from({ length: logits.length / vocabulary }, (_, t) => {
      const [p, q] = [logits, others].map((all) => logSoftmax(all.subarray(t * vocabulary, (t + 1) * vocabulary)));
      return Math.max(0, p.reduce((sum, v, j) => sum + Math.exp(v) * (v - q[j]), 0));
    });
    for (let i = 0; i < logits.length; i++) change = Math.max(change, Math.abs(logits[i] - others[i]));
    return { divergences, divergence: divergences.reduce((a, b) => a + b, 0) / divergences.length, change };
  };

  return { effects, apart, norm, jacobianTimes, look, softmax, half, unpack, sites, parts, forward, toRmsNorm };
})();
