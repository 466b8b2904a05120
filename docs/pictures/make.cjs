// Makes the pictures of the dashboard again: real jobs on this machine, photographed in headless Chromium.
//
//   apt install chromium-headless-shell && npm install --prefix DIR playwright-core
//   NODE_PATH=DIR/node_modules node docs/pictures/make.cjs target/release
//
// Look at each before you keep it.
"use strict";
const { execFileSync } = require("child_process");
const fs = require("fs"), os = require("os"), path = require("path");
const { chromium } = require("playwright-core");

const pictures = __dirname, source = path.resolve(__dirname, "../..");
const phalanx = path.resolve(process.argv[2] || path.join(source, "target/release"), "phalanx");
const browser = process.env.PHALANX_BROWSER || "/usr/bin/chromium-headless-shell";
const folder = path.join(os.tmpdir(), "phalanx-demo");
fs.mkdirSync(folder); // Fails if it is there: nothing of anybody's is removed.
const env = { ...process.env, PHALANX_JOBS_DIR: path.join(folder, "root") };

const run = (...words) => execFileSync(phalanx, words, { cwd: folder, env, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
const submit = (name, options, args) => run("jobs", "submit", "training", name, ...options, "--", ...args);
const ended = (name) => { try { run("jobs", "wait", name); } catch { /* its state is in the picture */ } };

function jobs() {
  for (const file of ["examples/digits.yaml", "crates/phalanx/data/digits.csv.gz"]) {
    fs.mkdirSync(path.dirname(path.join(folder, file)), { recursive: true });
    fs.copyFileSync(path.join(source, file), path.join(folder, file));
  }
  const train = ["phalanx", "train", "examples/digits.yaml"];
  submit("wrong_rate", ["--labels", "team=vision"], [...train, "--set", "optimizer.adam.learning_rat=1"]);
  ended("wrong_rate");
  submit("digits_1_worker", [], [...train, "--epochs", "4", "--output", "runs/one"]);
  ended("digits_1_worker");
  fs.writeFileSync(path.join(folder, "job.yaml"), "phalanx: {program: examples/digits.yaml, workers: 2}\n");
  submit("digits", ["--config", "job.yaml"], ["--epochs", "60"]);
  ended("digits");
  const search = ["--search", "optimizer.adam.learning_rate=1e-4..0.1:log", "--search", "fit.batch_size=16,32,64"];
  run("tune", "examples/digits.yaml", "--name", "digits_search", ...search, "--metric", "val_accuracy", "--trials", "12", "--parallel", "2", "--", "--epochs", "4");
  submit("long_run", [], [...train, "--epochs", "2000", "--output", "runs/long"]);
  submit("waits", ["--config", "job.yaml"], ["--epochs", "40"]);
}

async function photographs() {
  const shell = await chromium.launch({ executablePath: browser, args: ["--no-sandbox"] });
  const page = await shell.newPage({ viewport: { width: 1080, height: 310 }, deviceScaleFactor: 1 });
  const errors = [];
  page.on("console", (said) => { if (said.type() === "error") errors.push(said.text()); });
  const address = run("jobs", "dashboard").trim(), base = new URL(address).origin;
  await page.goto(address);
  const shot = async (name, selector, setup) => {
    const place = selector ? page.locator(selector) : page;
    if (setup) await setup();
    await place.screenshot({ path: path.join(pictures, `${name}.png`) });
  };
  await page.waitForSelector("#jobs tr");
  await shot("list");
  const open = async (name, selector) => {
    await page.goto(`${base}/#${name}`);
    await page.waitForFunction((name) => document.getElementById("name").textContent === name, name);
    await page.waitForSelector(selector);
  };
  await open("digits", "#curves figure");
  await page.setViewportSize({ width: 1080, height: 745 });
  await shot("job");
  await page.setViewportSize({ width: 1080, height: 3000 });
  await shot("curves", "#curves");
  await shot("system", "#usage");
  await open("digits_search", "#parallel svg");
  await shot("tuning", "#trials");
  await shell.close();
  if (errors.length) throw new Error(errors.join("\n"));
}

(async () => {
  try {
    jobs();
    await photographs();
  } finally {
    for (const name of ["long_run", "waits"]) try { run("jobs", "cancel", name); ended(name); } catch { /* not begun */ }
    try { process.kill(JSON.parse(fs.readFileSync(path.join(folder, "root/daemon.json"))).pid); } catch { /* gone */ }
    fs.rmSync(folder, { recursive: true, force: true });
  }
})().catch((error) => { console.error(error); process.exit(1); });
