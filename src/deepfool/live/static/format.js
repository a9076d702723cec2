// Numbers as text, and bytes as numbers.
export const number = (value, digits = 3) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return "∞";
  return String(Number(value.toPrecision(digits)));
};
export const percent = (share, digits = 3) => {
  if (share === null || share === undefined || Number.isNaN(share)) return "–";
  const text = Number((100 * share).toPrecision(digits));
  if (text === 100 && share < 1) return "> 99.9 %";
  if (share < 0.00005) return "< 0.01 %";
  return `${text} %`;
};
// A change relative to the size of the input: it may be tiny, and is never rounded to nothing.
export const ratio = (rho) => (rho === null || rho === undefined ? "–" : `${number(100 * rho)} %`);
export const norm = (p) => (p === "inf" ? "ℓ∞" : `ℓ${p}`);
export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

export function toBytes(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}
export const toFloats = (text) => new Float32Array(toBytes(text).buffer);
export function fromBytes(bytes) {
  let raw = "";
  for (let i = 0; i < bytes.length; i += 8192) raw += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(raw);
}

export function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(options)) {
    if (key === "class") element.className = value;
    else if (key in element) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}
export function draw(tag, attributes = {}, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
