// Starts the page with the theme that the reader prefers.

const root = document.documentElement;
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;
const applyTheme = () => {
  root.dataset.theme = chosenTheme ?? (prefersDark.matches ? "dark" : "light");
  known.clear();
};
applyTheme();

// Runs the charting library (1.2 MB). The page runs it after its controls work, and before it
// prints.
function loadPlotly(text) {
  if (window.Plotly) return;
  const script = document.createElement("script");
  script.textContent = text;
  document.head.append(script);
}

// The numbers are decoded asynchronously. A headless browser prints a page as soon as it has
// loaded. An open document in an iframe delays the load event until the numbers are available.
const pending = document.body.appendChild(element("iframe", { hidden: "", title: "loading" }));
pending.contentDocument.open();
const loaded = () => {
  pending.contentDocument.close();
  pending.remove();
};

readPage().then((page) => {
  const shown = controls(page);
  const changeTheme = () => { applyTheme(); shown.everything(); };
  prefersDark.addEventListener("change", changeTheme);
  document.getElementById("theme").addEventListener("click", () => {
    chosenTheme = root.dataset.theme === "dark" ? "light" : "dark";
    changeTheme();
  });
  // A print uses the light theme and the width of the style sheet, and contains all charts,
  // including those that are not in view.
  let before = null;
  addEventListener("beforeprint", () => {
    // The event may occur twice.
    if (!root.dataset.print) before = chosenTheme;
    chosenTheme = "light";
    root.dataset.print = "true";
    loadPlotly(page.plotly);
    changeTheme();
    shown.drawNow();
  });
  addEventListener("afterprint", () => {
    chosenTheme = before;
    delete root.dataset.print;
    // Resize the charts explicitly: Plotly observes the size of the window, not of the container.
    if (window.Plotly) document.querySelectorAll(".js-plotly-plot").forEach((chart) => Plotly.Plots.resize(chart));
    changeTheme();
  });
  root.dataset.interactive = String(Math.round(performance.now()));
  loaded();
  requestAnimationFrame(() => setTimeout(() => loadPlotly(page.plotly)));
}).catch((error) => {
  loaded();
  console.error(error);
  document.querySelector("main").prepend(element("p", { class: "caveat" }, `The charts could not be drawn: ${error.message}`));
});
