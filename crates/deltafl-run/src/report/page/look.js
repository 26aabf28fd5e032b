// Colours, units and words.

// Okabe and Ito's palette, told apart by the colour-blind; the baseline is grey.
const HUES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
const HUES_ON_DARK = ["#56b4e9", "#f08a3c", "#1fbf92", "#dd9bc0", "#e6b030", "#4a9fe0"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
// The places of the percentile of the tail and of the objective among the figures of a measure.
const TAIL = 5;
const OBJECTIVE = 7;
// The figures that a measure has: the loss of train devices has the objective too.
const ordinals = (measure) => (measure.objective ? [...measure.columns, "F_θ"] : measure.columns);

const isDark = () => document.documentElement.dataset.theme === "dark";

// The colours of the style sheet, remembered until the theme changes: to ask for one settles the whole page's style.
const known = new Map();
function cssColour(name) {
  if (!known.has(name)) known.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return known.get(name);
}

// Colour and dash of a track: the same in every chart.
function lookOf(run, track) {
  if (track === run.baseline) return { colour: isDark() ? "#b8b4ad" : "#6b6f73", dash: "solid" };
  const place = run.knob.indexOf(track) - 1;
  const hues = isDark() ? HUES_ON_DARK : HUES;
  return { colour: hues[place % hues.length], dash: DASHES[place % DASHES.length] };
}

function faded(colour, opacity) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  return `rgba(${r},${g},${b},${opacity})`;
}

// A value as it is drawn: shares in per cent.
const drawn = (measure, value) => (measure.percent ? 100 * value : value);
// One of eight digits and more by its power of ten.
const number = (measure, value) => written(drawn(measure, value), measure.decimals);
const written = (value, decimals) => (Math.abs(value) >= 1e7 ? value.toExponential(3).replace("+", "") : value.toFixed(decimals));
// A change as a cost: below 0 is better, whichever way the measure counts.
const cost = (measure, value) => (measure.lower_is_better ? value : -value);
// A range, as far as its ends are known.
function range({ lower, upper }, text) {
  if (!Number.isFinite(upper)) return Number.isFinite(lower) ? `≥ ${text(lower)}` : "?";
  if (!Number.isFinite(lower)) return `≤ ${text(upper)}`;
  return text(lower) === text(upper) ? text(lower) : `${text(lower)}–${text(upper)}`;
}
const withUnit = (measure, value) => number(measure, value) + (measure.percent ? " %" : "");

// A change with its sign; a true minus, as long as the plus.
function change(measure, value) {
  const text = number(measure, Math.abs(value));
  if (Number(text) === 0) return "±" + text;
  return (value < 0 ? "−" : "+") + text;
}
const changeUnit = (measure) => (measure.percent ? " points" : "");
const changeClass = (measure, value) => (cost(measure, value) < 0 ? "gain" : cost(measure, value) > 0 ? "loss" : "");
const rounds = (n) => `${n.toLocaleString("en-GB")} ${n === 1 ? "round" : "rounds"}`;

// An element; text is text, never markup: a device may be called anything.
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const MARKUP = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
const asMarkup = (text) => text.replace(/[&<>]/g, (c) => MARKUP[c]);
