//! One program under test: started, warmed up and timed until it fails or exceeds a limit.

use std::time::{Duration, Instant};

use super::peer::Peer;
use super::peer_process::{Hello, PeerFailure, PeerProcess, Turn};
use super::score::Score;
use crate::workspace::Workspace;

/// For a program to import and build its model.
const START_LIMIT: Duration = Duration::from_secs(120);
/// For the first step, which traces and compiles.
const FIRST_LIMIT: Duration = Duration::from_secs(180);
/// For each later step.
const STEP_LIMIT: Duration = Duration::from_secs(30);
/// Between programs, so that spinning threads of the last one go to sleep.
const PAUSE: Duration = Duration::from_millis(100);

/// A running program and its score; the process is gone once it has failed.
pub(super) struct BenchRun {
    process: Option<PeerProcess>,
    pub(super) score: Score,
}

impl BenchRun {
    /// Starts a program, in another variant than its first where one is named, and runs its first two steps.
    pub(super) fn start(
        workspace: &Workspace,
        peer: &Peer,
        arguments: &[&str],
        variant: &str,
    ) -> Self {
        let mut arguments = arguments.to_vec();
        if !variant.is_empty() {
            arguments.extend(["--variant", variant]);
        }
        eprintln!("starting {} {}", peer.name, arguments.join(" "));
        let mut command = peer.command();
        command.args(&arguments);
        let log = format!(
            "bench-{}-{}",
            peer.name,
            arguments.join("-").replace('/', "-")
        );
        let named = Hello {
            framework: peer.name.to_owned(),
            variant: variant.to_owned(),
            version: String::new(),
        };
        let started = PeerProcess::start(&mut command, &workspace.log(&log), START_LIMIT);
        let (mut process, hello) = match started {
            Ok(started) => started,
            Err(failure) => return Self::empty(Score::new(named), failure),
        };
        let mut score = Score::new(hello);
        // The first step compiles; the second still warms caches.
        let start = Instant::now();
        let first = process.take_steps(1, FIRST_LIMIT).and_then(|first| {
            score.first_ms = Some(start.elapsed().as_secs_f64() * 1e3);
            score.first_loss = Some(first.loss);
            score.peak_mib = process.peak_mib();
            process.take_steps(1, STEP_LIMIT)
        });
        match first {
            Ok(_) => Self {
                process: Some(process),
                score,
            },
            Err(failure) => Self::empty(score, failure),
        }
    }

    fn empty(mut score: Score, failure: PeerFailure) -> Self {
        score.failure = Some(failure);
        Self {
            process: None,
            score,
        }
    }

    /// Times `steps` steps; does nothing once the program has failed.
    pub(super) fn time_steps(&mut self, steps: usize) {
        if let Some(turn) = self.take_steps(steps) {
            self.score.add(&turn);
        }
    }

    /// Runs `steps` steps that do not count; what one took in milliseconds, unless the program failed.
    pub(super) fn warm_up(&mut self, steps: usize) -> Option<f64> {
        self.take_steps(steps).map(|turn| turn.median_ms)
    }

    /// The number of its process, until it has failed.
    pub(super) fn process_id(&self) -> Option<u32> {
        self.process.as_ref().map(PeerProcess::id)
    }

    /// Ends the program; its score. One that has failed keeps the memory of its first step.
    pub(super) fn finish(mut self) -> Score {
        if let Some(process) = &self.process {
            self.score.peak_mib = process.peak_mib();
        }
        self.score
    }

    fn take_steps(&mut self, steps: usize) -> Option<Turn> {
        let process = self.process.as_mut()?;
        std::thread::sleep(PAUSE);
        let turn = process.take_steps(steps, STEP_LIMIT.saturating_mul(steps as u32));
        turn.map_err(|failure| {
            self.score.failure = Some(failure);
            self.process = None;
        })
        .ok()
    }
}
