//! What callbacks ask for where workers do not step together.

use phalanx::fit::callbacks::{Lambda, ModelCheckpoint, SaveFreq, TerminateOnNan};
use phalanx::fit::{TensorBoard, UpdateFreq};
use phalanx::prelude::*;

use crate::{on_cluster, on_workers, ragged, scratch, sync};

fn quiet(epochs: usize) -> Fit {
    Fit::epochs(epochs).progress(Progress::Silent)
}

#[test]
fn a_stop_at_a_batch_ends_the_epoch_there() {
    let folder = scratch("stop");
    let path = folder.join("{epoch}-{batch}");
    let all = on_workers((2, 1), &sync(), |strategy| {
        let case = ragged();
        let stop = Lambda::new().on_train_batch_end(|batch, cx| {
            if (cx.epoch(), batch) == (0, 1) {
                cx.stop("enough");
            }
            Ok(())
        });
        let every = ModelCheckpoint::new(path.display().to_string());
        let every = every.save_freq(SaveFreq::Batches(1));
        let mut trainer = strategy.compile(case.model, case.compile).unwrap();
        let fit = quiet(3).callback(stop).callback(every);
        let history = trainer.fit(&case.data.batch(case.batch), fit).unwrap();
        let steps = history.epochs.iter().map(|done| done.steps);
        (steps.collect::<Vec<_>>(), trainer.iterations())
    });
    assert_eq!(all, [(vec![2], 2), (vec![2], 2)]);
}

/// Nothing of these would be done.
#[test]
fn what_follows_single_steps_is_refused() {
    let folder = scratch("refused");
    let board = || TensorBoard::new(folder.join("events"));
    let plans = [
        ("leave it out", quiet(1).callback(TerminateOnNan::new())),
        (
            "leave out `update_freq`",
            quiet(1).tensorboard(board().update_freq(UpdateFreq::Steps(1))),
        ),
        (
            "leave out `trace`",
            quiet(1).trace(folder.join("trace"), 1, 1),
        ),
        (
            "leave out `trace`",
            quiet(1).tensorboard(board().profile_batch(2, 3)),
        ),
    ];
    for (what, plan) in plans {
        let train = |strategy: ParameterServerStrategy| {
            let case = ragged();
            let mut trainer = strategy.compile(case.model, case.compile).unwrap();
            let error = trainer.fit(&case.data.batch(case.batch), plan.clone());
            error.unwrap_err().to_string()
        };
        let errors = on_cluster((1, 1), &sync(), train, |_| ());
        assert!(errors[0].contains(what), "{errors:?}");
        assert!(errors[0].contains("parameter servers"), "{errors:?}");
    }
}

#[test]
fn each_worker_writes_what_it_uses_to_its_own_folder() {
    let folder = scratch("usage");
    let events = folder.join("events");
    on_workers((2, 1), &sync(), |strategy| {
        let case = ragged();
        let mut trainer = strategy.compile(case.model, case.compile).unwrap();
        let fit = quiet(1).tensorboard(TensorBoard::new(&events));
        trainer.fit(&case.data.batch(case.batch), fit).unwrap();
    });
    for worker in ["worker-0", "worker-1"] {
        let files = std::fs::read_dir(events.join(worker)).unwrap();
        assert_eq!(files.count(), 1, "{worker}");
    }
}
