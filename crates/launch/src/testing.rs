//! What tests share.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use phalanx_testkit::write_program;
use serde_json::Value as Json;

use crate::lifecycle::Submitted;

/// The job `demo` as it was submitted in a folder, with no variables.
pub(crate) fn submitted(directory: &Path, training_input: Json, phalanx: Json) -> Submitted {
    Submitted {
        name: "demo".parse().unwrap(),
        project: "p".to_owned(),
        training_input,
        phalanx,
        labels: Default::default(),
        directory: directory.to_owned(),
        environment: Default::default(),
    }
}

/// Writes scripts of a shell into a new folder, by name.
pub(crate) fn written(folder: &Path, all: &[(&str, &str)]) {
    fs::create_dir_all(folder).unwrap();
    for (name, text) in all {
        write_program(folder.join(name), &format!("#!/bin/sh\n{text}\n"));
    }
}

/// A folder for one test, removed at its end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = format!("phalanx-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(folder);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
