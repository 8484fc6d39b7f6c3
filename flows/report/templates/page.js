"use strict";
// Folded parts are absent on paper: open them for printing, then fold them again.
const folded = () => [...document.querySelectorAll("details:not([open])")];
let opened = [];
addEventListener("beforeprint", () => { opened = folded(); opened.forEach((part) => { part.open = true; }); });
addEventListener("afterprint", () => { opened.forEach((part) => { part.open = false; }); opened = []; });
for (const button of document.querySelectorAll("button[data-fold]")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const parts = document.getElementById(button.dataset.fold).querySelectorAll("details");
    const open = [...parts].some((part) => !part.open);
    parts.forEach((part) => { part.open = open; });
  });
}
