// Theme, folds, sorting, filtering, metrics. The page is complete without this script.
(function () {
  "use strict";
  var root = document.documentElement;
  document.querySelectorAll("[data-script]").forEach(function (part) { part.hidden = false; });

  var themes = ["auto", "light", "dark"];
  var toggle = document.getElementById("theme");

  // A page from disk or behind a CI server's policy may have no storage: then nothing is kept.
  function kept() {
    try { return localStorage.getItem("envcompare-theme"); } catch (_) { return null; }
  }

  function keep(theme) {
    try { localStorage.setItem("envcompare-theme", theme); } catch (_) { /* not kept */ }
  }

  function show(theme) {
    if (theme === "auto") { delete root.dataset.theme; } else { root.dataset.theme = theme; }
    toggle.textContent = "Theme: " + theme;
  }

  if (themes.indexOf(kept()) > 0) { show(kept()); }
  toggle.addEventListener("click", function () {
    var next = themes[(themes.indexOf(root.dataset.theme || "auto") + 1) % themes.length];
    show(next);
    keep(next);
  });
  document.getElementById("print").addEventListener("click", function () { window.print(); });

  function openTarget() {
    var target = document.getElementById(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") { target.open = true; }
  }
  window.addEventListener("hashchange", openTarget);
  openTarget();

  var table = document.getElementById("comparisons");
  if (!table) { return; }
  var body = table.tBodies[0];
  var rows = Array.prototype.slice.call(body.rows);

  function keyOf(row, column) {
    var cell = row.cells[column];
    var key = cell.dataset.key;
    if (key === undefined) { return cell.textContent.trim(); }
    return key === "" ? Infinity : Number(key);
  }

  function order(head) {
    var column = head.cellIndex, down = head.getAttribute("aria-sort") === "descending";
    rows.slice().sort(function (a, b) {
      var left = keyOf(a, column), right = keyOf(b, column);
      var found = typeof left === "number" && typeof right === "number"
        ? (left === right ? 0 : left < right ? -1 : 1)
        : String(left).localeCompare(String(right));
      return down ? -found : found;
    }).forEach(function (row) { body.appendChild(row); });
  }

  function sortBy(head) {
    var down = head.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("th[aria-sort]").forEach(function (other) { other.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    order(head);
  }

  table.querySelectorAll("th[data-sort]").forEach(function (head) {
    var button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    while (head.firstChild) { button.appendChild(head.firstChild); }
    head.appendChild(button);
    button.addEventListener("click", function () { sortBy(head); });
  });

  var find = document.getElementById("find");
  var boxes = Array.prototype.slice.call(document.querySelectorAll("#filter input[name=outcome]"));
  var unconfounded = document.getElementById("unconfounded");
  var shown = document.getElementById("shown");

  function filter() {
    var words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    var off = boxes.filter(function (box) { return !box.checked; }).map(function (box) { return box.value; });
    var count = 0;
    rows.forEach(function (row) {
      var text = row.textContent.toLowerCase();
      var fits = off.indexOf(row.dataset.outcome) < 0
        && !(unconfounded && unconfounded.checked && "confounded" in row.dataset)
        && words.every(function (word) { return text.includes(word); });
      row.hidden = !fits;
      if (fits) { count += 1; }
    });
    shown.textContent = count + " of " + rows.length + " shown";
  }

  find.addEventListener("input", filter);
  boxes.forEach(function (box) { box.addEventListener("change", filter); });
  if (unconfounded) { unconfounded.addEventListener("change", filter); }
  document.getElementById("filter").addEventListener("submit", function (event) { event.preventDefault(); });
  filter();

  // A link to a row that the filter hides shows all rows.
  window.addEventListener("hashchange", function () {
    var target = document.getElementById(location.hash.slice(1));
    if (!target || !target.hidden) { return; }
    find.value = "";
    boxes.forEach(function (box) { box.checked = true; });
    if (unconfounded) { unconfounded.checked = false; }
    filter();
    target.scrollIntoView();
  });

  // Another metric: numbers and log ratios come from the table of all metrics, row by row.
  var metric = document.getElementById("metric");
  var note = document.getElementById("metric-note");
  var figures = Array.prototype.slice.call(document.getElementById("metrics").tBodies[0].rows);
  var low = Number(table.dataset.low), high = Number(table.dataset.high);
  var own = rows.map(function (row) {
    var cell = row.querySelector("[data-change]");
    return { cell: cell, key: cell.dataset.key, nodes: Array.prototype.slice.call(cell.childNodes) };
  });

  // as report/__init__.py places them: 240 wide, 8 of it at each side
  function placeOf(ratio) {
    return 8 + Math.min(1, Math.max(0, (ratio - low) / (high - low))) * 224;
  }

  function part(name, attributes) {
    var made = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.keys(attributes).forEach(function (key) { made.setAttribute(key, attributes[key]); });
    return made;
  }

  function drawnMark(places) {
    var group = part("g", { "class": "other" });
    if (places.length === 3) {
      var from = placeOf(places[1]), to = placeOf(places[2]);
      group.appendChild(part("path", { "class": "whisker",
        d: "M" + from + " 12H" + to + "M" + from + " 7V17M" + to + " 7V17" }));
    }
    if (Math.max.apply(null, places) > high) {
      group.appendChild(part("path", { "class": "whisker", d: "M229 7L234 12L229 17M234 7L239 12L234 17" }));
    }
    if (Math.min.apply(null, places) < low) {
      group.appendChild(part("path", { "class": "whisker", d: "M11 7L6 12L11 17M6 7L1 12L6 17" }));
    }
    group.appendChild(part("circle", { "class": "point", r: 4, cx: placeOf(places[0]), cy: 12 }));
    return group;
  }

  function showIn(row, index) {
    var was = own[index], drawing = row.querySelector("svg.mark");
    var figure = metric.value === "" ? null : figures[index].cells[2 + Number(metric.value)];
    var places = figure && figure.dataset.places ? figure.dataset.places.split(" ").map(Number) : null;
    var other = drawing && drawing.querySelector(".other");
    if (other) { other.remove(); }
    if (drawing) {
      drawing.querySelector("g").setAttribute("display", figure ? "none" : "inline");
      if (places) { drawing.appendChild(drawnMark(places)); }
    }
    was.cell.dataset.key = figure ? (places ? places[0] : "") : was.key;
    was.cell.replaceChildren();
    if (!figure) { was.nodes.forEach(function (node) { was.cell.appendChild(node); }); return; }
    if (!places) { was.cell.textContent = "not measured"; return; }
    var number = document.createElement("strong"), interval = document.createElement("small");
    number.textContent = figure.firstChild.textContent;
    interval.textContent = figure.lastChild.textContent;
    was.cell.appendChild(number);
    was.cell.appendChild(interval);
  }

  metric.addEventListener("change", function () {
    rows.forEach(showIn);
    note.textContent = metric.value === ""
      ? "Only the metric that a verdict rests on is widened."
      : "Shown: " + metric.selectedOptions[0].textContent + ", not widened unless the verdict rests on it; verdicts stay.";
    var sorted = table.querySelector("th[aria-sort]");
    if (sorted && sorted.cellIndex === own[0].cell.cellIndex) { order(sorted); }
    filter();
  });
}());
