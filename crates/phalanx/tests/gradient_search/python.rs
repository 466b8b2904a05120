//! A Python that answers requests, a line of JSON each, for as long as the tests run.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

/// A script that is started with the first request.
pub(crate) struct Script {
    /// The variable that has the path of the Python.
    pub(crate) variable: &'static str,
    /// The script's name, in the folder of the search.
    pub(crate) file: &'static str,
    pub(crate) running: Mutex<Option<Running>>,
}

pub(crate) struct Running {
    _child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Script {
    /// Whether there is a Python for it.
    pub(crate) fn is_given(&self) -> bool {
        std::env::var_os(self.variable).is_some()
    }

    /// The lists of numbers that it answers with; those that are not finite are NaN.
    pub(crate) fn ask(&self, request: &Value) -> Result<Vec<Vec<f64>>, String> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let running = running.get_or_insert_with(|| self.start());
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", self.file);
        writeln!(running.requests, "{request}").map_err(|error| failed(&error))?;
        running.requests.flush().map_err(|error| failed(&error))?;
        let mut answer = String::new();
        let read = running.answers.read_line(&mut answer);
        read.map_err(|error| failed(&error))?;
        let answer: Value = serde_json::from_str(&answer).map_err(|error| failed(&error))?;
        let Some(lists) = answer["gradients"].as_array() else {
            return Err(failed(&answer["error"]));
        };
        let numbers = |list: &Value| {
            let numbers = list.as_array().into_iter().flatten();
            numbers
                .map(|number| number.as_f64().unwrap_or(f64::NAN))
                .collect()
        };
        Ok(lists.iter().map(numbers).collect())
    }

    fn start(&self) -> Running {
        let python = std::env::var(self.variable).unwrap();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gradient_search/");
        let mut command = Command::new(&python);
        command.arg(format!("{folder}{}", self.file));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {python}: {error}"));
        Running {
            requests: child.stdin.take().unwrap(),
            answers: BufReader::new(child.stdout.take().unwrap()),
            _child: child,
        }
    }
}
