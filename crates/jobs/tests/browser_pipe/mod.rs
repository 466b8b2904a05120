//! A headless Chromium, asked by its DevTools protocol over two pipes: a JSON value and a zero byte each.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

const PATIENCE: Duration = Duration::from_secs(300);

/// A browser with one page, ended with this.
pub(crate) struct Browser {
    process: Child,
    input: File,
    answers: Receiver<Json>,
    session: Option<String>,
    number: u64,
    /// What was fetched, by its address.
    pub(crate) fetched: Vec<String>,
}

impl Browser {
    /// Starts the program that PHALANX_TEST_BROWSER names, or one that is in PATH; `None` where there is none, or the one found does not
    /// answer.
    pub(crate) fn start(folder: &Path) -> Option<Self> {
        let named = std::env::var_os("PHALANX_TEST_BROWSER");
        let program = named.clone().or_else(found)?;
        fs::create_dir_all(folder).unwrap();
        let process = spawn(&program, folder);
        // Opened in the order in which the shell does.
        let input = File::options().write(true).open(folder.join("in")).unwrap();
        let output = BufReader::new(File::open(folder.join("out")).unwrap());
        let (send, answers) = channel();
        std::thread::spawn(move || {
            for message in output.split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else {
                    continue;
                };
                if send.send(message).is_err() {
                    break;
                }
            }
        });
        let mut browser = Self {
            process,
            input,
            answers,
            session: None,
            number: 0,
            fetched: Vec::new(),
        };
        let page = match browser.try_ask("Target.createTarget", &json!({"url": "about:blank"})) {
            Ok(page) => page,
            Err(why) if named.is_none() => {
                let log = fs::read_to_string(folder.join("browser.log")).unwrap_or_default();
                eprintln!("the browser in PATH does not work here: {why}\n{log}");
                return None;
            }
            Err(why) => panic!("{why}"),
        };
        let target = json!({"targetId": page["targetId"], "flatten": true});
        let session = browser.ask("Target.attachToTarget", &target);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        browser.ask("Network.enable", &json!({}));
        browser.ask("Page.enable", &json!({}));
        Some(browser)
    }

    /// The answer to a command.
    pub(crate) fn ask(&mut self, method: &str, params: &Json) -> Json {
        let answer = self.try_ask(method, params);
        answer.unwrap_or_else(|why| panic!("{why}"))
    }

    /// The answer to a command, or why there is none.
    fn try_ask(&mut self, method: &str, params: &Json) -> Result<Json, String> {
        self.number += 1;
        let mut command = json!({"id": self.number, "method": method, "params": params});
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        let sent = self.input.write_all(format!("{command}\0").as_bytes());
        sent.map_err(|error| format!("{method}: {error}"))?;
        loop {
            let message = self.answers.recv_timeout(PATIENCE);
            let message = message.map_err(|error| format!("{method}: {error}"))?;
            if message["method"] == "Network.requestWillBeSent" {
                let url = message["params"]["request"]["url"]
                    .as_str()
                    .unwrap_or_default();
                self.fetched.push(url.to_owned());
            }
            if message["id"] == self.number {
                return match &message["error"] {
                    Json::Null => Ok(message["result"].clone()),
                    error => Err(format!("{method}: {error}")),
                };
            }
        }
    }

    /// Goes to an address.
    pub(crate) fn open(&mut self, address: &str) {
        self.ask("Page.navigate", &json!({"url": address}));
    }

    /// What an expression is in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Json {
        self.ask("Runtime.evaluate", &evaluated(expression))["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&mut self, expression: &str) {
        let until = Instant::now() + PATIENCE;
        // While a page gives way to the next one there is nothing to ask.
        let mut value = |expression: &str| {
            let answer = self.try_ask("Runtime.evaluate", &evaluated(expression));
            answer.map_or_else(Json::from, |answer| answer["result"]["value"].clone())
        };
        while value(expression) != true {
            let page = value("document.body.innerText.slice(0, 4000)");
            assert!(
                Instant::now() < until,
                "{expression} is not true of\n{page}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Starts a browser that is asked by the pipes `in` and `out` of a folder.
fn spawn(program: &OsStr, folder: &Path) -> Child {
    let script = "mkfifo in out && exec \"$@\" 3<in 4>out";
    let profile = format!("--user-data-dir={}", folder.join("profile").display());
    let process = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(program)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            // Containers have little of it.
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
        ])
        .args([profile.as_str(), "about:blank"])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(folder.join("browser.log")).unwrap())
        .spawn()
        .unwrap();
    let until = Instant::now() + PATIENCE;
    while !folder.join("out").exists() {
        assert!(Instant::now() < until, "the pipes were not made");
        std::thread::sleep(Duration::from_millis(10));
    }
    process
}

fn evaluated(expression: &str) -> Json {
    json!({"expression": expression, "returnByValue": true})
}

/// A headless Chromium in PATH.
fn found() -> Option<OsString> {
    let path = std::env::var_os("PATH")?;
    let mut folders = std::env::split_paths(&path);
    let program = folders.find_map(|folder| {
        let program = folder.join("chromium-headless-shell");
        program.is_file().then_some(program)
    });
    program.map(PathBuf::into_os_string)
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
