// Puts the page together: colours, then the model's name, then chat and live view.

import { request } from "./api.js";
import { start as startChat } from "./chat.js";
import { start as startLive } from "./live.js";
import { start as startLoad } from "./load.js";

const THEMES = {
  "": ["◐", "Colours: as the system says"],
  light: ["☀", "Colours: light"],
  dark: ["☾", "Colours: dark"],
};

function showTheme(name) {
  const [sign, text] = THEMES[name];
  document.documentElement.dataset.theme = name;
  const button = document.getElementById("theme");
  button.title = text;
  button.firstChild.textContent = sign;
  button.lastElementChild.textContent = text;
}

function startTheme() {
  const names = Object.keys(THEMES);
  const kept = localStorage.getItem("tandem-theme");
  let now = names.includes(kept) ? kept : "";
  showTheme(now);
  document.getElementById("theme").addEventListener("click", () => {
    now = names[(names.indexOf(now) + 1) % names.length];
    localStorage.setItem("tandem-theme", now);
    showTheme(now);
  });
}

startTheme();
startLive();
const models = await (await request("v1/models")).json();
startChat(models.data[0].id);
startLoad(models.data[0].id);
document.getElementById("prompt").focus();
