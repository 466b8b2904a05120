//! Processes that stood still for so long that others have taken their place.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use phalanx::checkpoint::TrainingState;
use phalanx::fit::SaveBehind;
use phalanx::prelude::*;

use crate::{cases, engine, in_group, on_workers};

/// The variables of a checkpoint.
type Variables = Vec<(String, HostTensor)>;

fn held(checkpoint: &Path) -> Variables {
    TrainingState::load(checkpoint)
        .unwrap()
        .variables()
        .to_vec()
}

/// Trains four epochs as two workers that write a checkpoint after each epoch; what the last one holds.
fn others(checkpoint: &Path) -> Variables {
    let engines = |worker| engine(2 + worker, 1);
    // Both go on from the same one, whatever the first worker of before still writes behind its training.
    let is_at = TrainingState::is_at(checkpoint).unwrap();
    let state = is_at.then(|| TrainingState::load_newest(checkpoint).unwrap().0);
    in_group(2, engines, |strategy| {
        let mut case = cases::everything();
        case.compile.seed = 99;
        let mut trainer = strategy.compile(case.model, case.compile).unwrap();
        // They go on from a checkpoint that is there, as those that are started again do.
        let fit = Fit::epochs(2)
            .progress(Progress::Silent)
            .checkpoint(checkpoint);
        let fit = match &state {
            Some(state) => {
                trainer.set_training_state(state).unwrap();
                fit.resume()
            }
            None => fit,
        };
        trainer.fit(&case.data.batch(case.batch), fit).unwrap();
    });
    held(checkpoint)
}

/// The first worker stands still in the third epoch until others have trained to their end with the same checkpoint.
fn zombies(name: &str, behind: Option<SaveBehind>) {
    let folder = std::env::temp_dir().join(format!("phalanx-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let checkpoint = folder.join("checkpoint");
    let examples = cases::everything().data.len().unwrap();
    let trained = Mutex::new(Variables::new());
    let errors = std::thread::scope(|scope| {
        let (stands_still, has_trained) = (channel(), channel());
        let (tell, told) = stands_still;
        let (go, gone) = has_trained;
        let (trained, path) = (&trained, checkpoint.clone());
        scope.spawn(move || {
            told.recv().unwrap();
            *trained.lock().unwrap() = others(&path);
            go.send(()).unwrap();
        });
        let tell = Mutex::new(tell);
        let gone = Arc::new(Mutex::new(gone));
        on_workers(2, 1, |strategy| {
            let case = cases::everything();
            let mut trainer = strategy.compile(case.model, case.compile).unwrap();
            let (tell, gone) = (tell.lock().unwrap().clone(), Arc::clone(&gone));
            let (read, is_chief) = (AtomicUsize::new(0), strategy.is_chief());
            let data = case.data.map(move |example| {
                // The chief reads half of each epoch.
                if is_chief && read.fetch_add(1, Ordering::Relaxed) == 2 * examples / 2 {
                    tell.send(()).unwrap();
                    gone.lock().unwrap().recv().unwrap();
                }
                Ok(example)
            });
            let mut fit = Fit::epochs(6)
                .progress(Progress::Silent)
                .checkpoint(&checkpoint);
            if let Some(behind) = behind {
                fit = fit.save_behind(behind);
            }
            let error = trainer
                .fit(&data.batch(case.batch).prefetch(0), fit)
                .unwrap_err();
            error.to_string()
        })
    });
    assert!(
        errors[0].contains("belongs to other processes now"),
        "{errors:?}"
    );
    assert!(
        errors[1].contains("rank 0") || errors[1].contains("worker 0"),
        "{errors:?}"
    );
    assert_eq!(held(&checkpoint), trained.into_inner().unwrap());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_first_worker_that_was_replaced_writes_no_checkpoint() {
    zombies("zombies", None);
}

#[test]
fn nor_does_it_behind_its_training() {
    zombies("zombies-behind", Some(SaveBehind::Wait));
}
