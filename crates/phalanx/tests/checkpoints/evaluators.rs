//! An evaluator looks at each checkpoint once, in the order in which they were written, whatever their names and times are.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use phalanx::checkpoint::TrainingState;
use phalanx::fit::{Follow, Followed, Trainer};
use phalanx_testkit::Scratch;

use super::{rows, scratch, states, trainer, trials};

/// Saves as if the clock of the file system had stood still, as it does for some milliseconds.
fn save_at(state: &TrainingState, path: &Path, time: SystemTime) {
    state.save(path).unwrap();
    let manifest = path.join("checkpoint.json");
    let manifest = File::options().append(true).open(manifest).unwrap();
    manifest.set_modified(time).unwrap();
}

/// The steps that an evaluator finds, which calls `meanwhile` with each.
fn followed(follow: &Follow, meanwhile: impl FnMut(&Followed)) -> Vec<i64> {
    followed_by(&mut trainer(), follow, meanwhile)
}

fn followed_by(
    trainer: &mut Trainer,
    follow: &Follow,
    mut meanwhile: impl FnMut(&Followed),
) -> Vec<i64> {
    let mut steps = Vec::new();
    let found = trainer.follow(&rows(), follow, |followed| {
        meanwhile(followed);
        steps.push(followed.step);
        Ok(())
    });
    found.unwrap();
    steps
}

/// A folder with checkpoints of these steps, all of the same time, at these names.
fn with(name: &str, at: &[(&TrainingState, &str)], time: SystemTime) -> Scratch {
    let scratch = scratch(name);
    for (state, name) in at {
        save_at(state, &scratch.join(name), time);
    }
    fs::write(scratch.join("c.done"), "").unwrap();
    scratch
}

#[test]
fn checkpoints_of_the_same_moment_are_told_apart() {
    let [one, two, three] = states();
    let now = SystemTime::now();
    let at = [(&three, "c"), (&two, "c.1"), (&one, "c.2")];
    let folder = with("alike", &at, now);
    let follow = Follow::new(folder.join("c")).within(Duration::from_secs(60));
    assert_eq!(followed(&follow.clone().each(), |_| ()), [3, 6, 9]);
    assert_eq!(followed(&follow, |_| ()), [9]);
    // The last one comes within the moment in which the one before it was written.
    let folder = with("replaced", &[(&two, "c")], now);
    let follow = Follow::new(folder.join("c")).within(Duration::from_secs(60));
    let replace = |_: &Followed| save_at(&three, &folder.join("c"), now);
    assert_eq!(followed(&follow.each(), replace), [6, 9]);
}

/// TensorBoard forgets what an evaluator wrote before it was started again.
#[test]
fn an_evaluator_that_is_started_again_repeats_no_point() {
    let [one, two, _] = states();
    let at = [(&two, "c"), (&one, "c.1")];
    let folder = with("repeated", &at, SystemTime::now());
    let follow = Follow::new(folder.join("c")).within(Duration::from_secs(60));
    let follow = follow.summaries(folder.join("logs")).each();
    for _ in 0..2 {
        assert_eq!(followed(&follow, |_| ()), [3, 6]);
    }
    let run = phalanx_summary::Run::read(folder.join("logs/validation")).unwrap();
    let points = run.scalars["evaluation_loss_vs_iterations"].iter();
    let steps: Vec<i64> = points.map(|point| point.step).collect();
    assert_eq!(steps, [3, 6]);
}

#[test]
fn a_checkpoint_that_gets_another_name_is_evaluated_under_it() {
    let [one, two, three] = states();
    let now = SystemTime::now();
    let folder = with("renamed", &[(&two, "c"), (&one, "c.1")], now);
    let follow = Follow::new(folder.join("c")).within(Duration::from_secs(60));
    let rename = |followed: &Followed| {
        if followed.step == 3 {
            fs::rename(folder.join("c.1"), folder.join("c.2")).unwrap();
            fs::rename(folder.join("c"), folder.join("c.1")).unwrap();
            save_at(&three, &folder.join("c"), now);
        }
    };
    assert_eq!(followed(&follow.each(), rename), [3, 6, 9]);
    // The one after it has its name still, and waits.
    let at = [(&three, "c"), (&two, "c.1"), (&one, "c.2")];
    let folder = with("half_renamed", &at, now);
    let follow = Follow::new(folder.join("c")).within(Duration::from_secs(60));
    let rename = |followed: &Followed| {
        if followed.step == 3 {
            fs::rename(folder.join("c.1"), folder.join("c.3")).unwrap();
        }
    };
    assert_eq!(followed(&follow.each(), rename), [3, 6, 9]);
}

#[test]
fn a_checkpoint_without_a_name_has_its_turn_before_later_ones() {
    let [one, two, three] = states();
    let now = SystemTime::now();
    let at = [(&three, "c"), (&two, ".c.saving-1-0"), (&one, "c.1")];
    let mut trainer = trainer();
    for trial in 0..trials(60) as u64 {
        let folder = with("moving", &at, now);
        let follow = Follow::new(folder.join("c")).within(Duration::from_secs(60));
        let steps = std::thread::scope(|scope| {
            scope.spawn(|| {
                // Before the first look, in the midst of one, and after it.
                std::thread::sleep(Duration::from_micros(10 * trial));
                fs::rename(folder.join("c.1"), folder.join("c.2")).unwrap();
                fs::rename(folder.join(".c.saving-1-0"), folder.join("c.1")).unwrap();
            });
            followed_by(&mut trainer, &follow.each(), |_| ())
        });
        assert_eq!(steps, [3, 6, 9], "trial {trial}");
    }
    // One that a training that was ended has left without a name is not waited for without an end, and is not evaluated after later ones.
    let left = with("left", &at[..2], now);
    let follow = Follow::new(left.join("c"))
        .within(Duration::from_secs(60))
        .each();
    let rename = |_: &Followed| fs::rename(left.join(".c.saving-1-0"), left.join("c.1")).unwrap();
    assert_eq!(followed(&follow, rename), [9]);
}

#[test]
fn what_is_being_written_is_no_checkpoint_yet() {
    let [one, two] = states();
    let now = SystemTime::now();
    let folder = with("unfinished", &[(&one, "c"), (&two, ".c.saving-1-0")], now);
    let follow = Follow::new(folder.join("c")).within(Duration::from_secs(60));
    assert_eq!(followed(&follow.clone().each(), |_| ()), [3]);
    let publish = |followed: &Followed| {
        if followed.step == 3 {
            fs::rename(folder.join("c"), folder.join("c.1")).unwrap();
            fs::rename(folder.join(".c.saving-1-0"), folder.join("c")).unwrap();
        }
    };
    assert_eq!(followed(&follow.each(), publish), [3, 6]);
}
