//! A program that takes its turns until it is silent for too long.

use std::time::Duration;

use super::contestant::Contestant;
use super::player::{Hello, Player, Silence, Turn};
use super::score::Score;
use crate::workspace::Workspace;

/// Until a program has imported and built what it needs.
const START_LIMIT: Duration = Duration::from_secs(120);
/// A first step, with tracing and compilation.
const FIRST_LIMIT: Duration = Duration::from_secs(120);
/// Any later step.
const STEP_LIMIT: Duration = Duration::from_secs(30);
/// Between turns: threads that still spin come to rest.
const PAUSE: Duration = Duration::from_millis(100);

/// Someone at work, or why no longer.
pub(super) struct Seat {
    player: Option<Player>,
    pub(super) score: Score,
}

impl Seat {
    /// Starts a program and has it take its first steps.
    pub(super) fn take(
        workspace: &Workspace,
        contestant: &Contestant,
        arguments: &[&str],
        variant: &str,
    ) -> Self {
        eprintln!("starting {} {}", contestant.name, arguments.join(" "));
        let mut command = contestant.command();
        command.args(arguments);
        let log = format!("bench-{}-{}", contestant.name, arguments.join("-"));
        let named = Hello {
            framework: contestant.name.to_owned(),
            variant: variant.to_owned(),
            version: String::new(),
        };
        let started = Player::start(&mut command, &workspace.log(&log), START_LIMIT);
        let (mut player, hello) = match started {
            Ok(started) => started,
            Err(silence) => return Self::empty(Score::new(named), silence),
        };
        let mut score = Score::new(hello);
        // The first step compiles; the second still warms caches.
        let first = player.play(1, FIRST_LIMIT).and_then(|first| {
            score.first_loss = Some(first.loss);
            player.play(1, STEP_LIMIT)
        });
        match first {
            Ok(_) => Self {
                player: Some(player),
                score,
            },
            Err(silence) => Self::empty(score, silence),
        }
    }

    fn empty(mut score: Score, silence: Silence) -> Self {
        score.silence = Some(silence);
        Self {
            player: None,
            score,
        }
    }

    /// Some steps, unless it has left.
    pub(super) fn turn(&mut self, steps: usize) {
        if let Some(turn) = self.play(steps) {
            self.score.add(&turn);
        }
    }

    /// Some steps that do not count.
    pub(super) fn settle(&mut self, steps: usize) {
        self.play(steps);
    }

    fn play(&mut self, steps: usize) -> Option<Turn> {
        let player = self.player.as_mut()?;
        std::thread::sleep(PAUSE);
        let turn = player.play(steps, STEP_LIMIT.saturating_mul(steps as u32));
        turn.map_err(|silence| {
            self.score.silence = Some(silence);
            self.player = None;
        })
        .ok()
    }
}
