// Theme, sorting and filtering. The page is complete without this script.
(function () {
  "use strict";
  var root = document.documentElement;
  document.querySelectorAll("[data-script]").forEach(function (part) { part.hidden = false; });

  var themes = ["auto", "light", "dark"];
  var toggle = document.getElementById("theme");
  toggle.addEventListener("click", function () {
    var now = root.dataset.theme || "auto";
    var next = themes[(themes.indexOf(now) + 1) % themes.length];
    if (next === "auto") { delete root.dataset.theme; } else { root.dataset.theme = next; }
    toggle.textContent = "Theme: " + next;
  });

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

  function sortBy(head, column) {
    var down = head.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("th[aria-sort]").forEach(function (other) { other.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    rows.slice().sort(function (a, b) {
      var left = keyOf(a, column), right = keyOf(b, column);
      var order = typeof left === "number" && typeof right === "number"
        ? (left === right ? 0 : left < right ? -1 : 1)
        : String(left).localeCompare(String(right));
      return down ? -order : order;
    }).forEach(function (row) { body.appendChild(row); });
  }

  table.querySelectorAll("th[data-sort]").forEach(function (head) {
    var button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    while (head.firstChild) { button.appendChild(head.firstChild); }
    head.appendChild(button);
    button.addEventListener("click", function () { sortBy(head, head.cellIndex); });
  });

  var find = document.getElementById("find");
  var boxes = Array.prototype.slice.call(document.querySelectorAll("#filter input[type=checkbox]"));
  var shown = document.getElementById("shown");

  function filter() {
    var words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    var count = 0;
    rows.forEach(function (row) {
      var box = boxes.filter(function (one) { return one.value === row.dataset.outcome; })[0];
      var text = row.textContent.toLowerCase();
      var fits = (!box || box.checked) && words.every(function (word) { return text.includes(word); });
      row.hidden = !fits;
      if (fits) { count += 1; }
    });
    shown.textContent = count + " of " + rows.length + " shown";
  }

  find.addEventListener("input", filter);
  boxes.forEach(function (box) { box.addEventListener("change", filter); });
  filter();
}());
