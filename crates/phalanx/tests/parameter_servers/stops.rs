//! Trainings on servers that are asked to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// One of two workers is asked to stop between two epochs: both end after the same batch, with a checkpoint that loses nothing.
#[test]
fn a_worker_that_is_asked_to_stop_between_epochs_ends_all_with_a_checkpoint() {
    let folder = scratch("stopped");
    let reference = train(&OneDeviceStrategy::on(engine(0)), &ragged());
    for chief_is_asked in [true, false] {
        let path = &folder.join(format!("{chief_is_asked}"));
        let steps = on_workers((2, 2), &sync(), |strategy| {
            let is_asked = strategy.is_chief() == chief_is_asked;
            let stop = Arc::new(AtomicBool::new(false));
            let flag = Arc::clone(&stop);
            let case = ragged();
            let compiled = strategy.compile(case.model.clone(), case.compile.clone());
            let (mut trainer, data) = (compiled.unwrap(), case.data.batch(case.batch));
            let fit = Fit::epochs(case.epochs).progress(Progress::Silent);
            let fit = fit.validation(&data).checkpoint(path).stop_when(&stop);
            let fit = fit.after_epoch(move |done| {
                flag.store(is_asked && done.epoch == 0, Ordering::Relaxed);
                Ok(())
            });
            let stopped = trainer.fit(&data, fit).unwrap_err();
            assert!(matches!(stopped, phalanx::Error::Stopped(_)), "{stopped}");
            trainer.iterations()
        });
        // Epochs of three batches; the other worker may have begun the next one before it hears of it.
        assert!(
            steps[0] == steps[1] && (3..6).contains(&steps[0]),
            "{steps:?}"
        );
        let name = format!("the chief is asked: {chief_is_asked}");
        let went_on = go_on(&OneDeviceStrategy::on(engine(0)), path);
        compare(&name, TOLERANCE, &reference, &went_on);
        if steps[0] > 3 {
            continue;
        }
        // No batch of the second epoch is done, and all may be of another size.
        let case = Case {
            batch: 5,
            ..ragged()
        };
        on_workers((2, 1), &sync(), |strategy| {
            train_as(&strategy, &case, |trainer, fit| {
                trainer.restore_checkpoint(path).unwrap();
                fit.resume()
            })
        });
    }
}
