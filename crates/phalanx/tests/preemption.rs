//! Notices of a preemption end a training with a checkpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use phalanx::Error;
use phalanx::checkpoint::TrainingState;
use phalanx::fit::callbacks::Lambda;
use phalanx::fit::preemption::{
    AwsNotice, AzureNotice, GceNotice, PreemptionNotice, PreemptionWatcher,
};
use phalanx::prelude::*;
use phalanx_cluster::launch::ReservedPorts;
use phalanx_testkit::MetadataServer;

fn trainer() -> Trainer {
    let compile = Compile {
        optimizer: Adam::new(0.05).into(),
        loss: MeanSquaredError.into(),
        ..Compile::default()
    };
    let strategy = OneDeviceStrategy::new().unwrap();
    let model = Sequential::new([2]).add(Dense::new(1));
    strategy.compile(model, compile).unwrap()
}

fn stopped_by(notice: impl PreemptionNotice, server: &Arc<MetadataServer>, name: &str) {
    server.announce(false);
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("notice-{name}"));
    TrainingState::remove(&path).unwrap();
    let x = HostTensor::new([8, 2], &[0.5f32; 16]);
    let y = HostTensor::new([8, 1], &[1.0f32; 8]);
    let data = Dataset::from_arrays(x, y).unwrap().batch(4);
    let stop = Arc::new(AtomicBool::new(false));
    let watcher = PreemptionWatcher::start(notice, Duration::from_millis(1), &stop).unwrap();
    let announcing = Arc::clone(server);
    let tell = Lambda::new().on_epoch_end(move |done, _| {
        if done.epoch == 2 {
            announcing.announce(true);
        }
        Ok(())
    });
    let begun = Instant::now();
    let limit = Lambda::new().on_epoch_begin(move |_, _| {
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "nobody tells it"
        );
        Ok(())
    });
    let fit = Fit::epochs(usize::MAX)
        .progress(Progress::Silent)
        .callback(tell)
        .callback(limit)
        .checkpoint(&path)
        .stop_when(&stop);
    let mut trainer = trainer();
    let ended = trainer.fit(&data, fit);
    assert!(matches!(ended, Err(Error::Stopped(_))), "{ended:?}");
    assert_eq!(watcher.failure(), None);
    let saved = TrainingState::load(&path).unwrap();
    assert_eq!(saved.iterations(), trainer.iterations());
    assert!(saved.iterations() >= 6);
    TrainingState::remove(&path).unwrap();
}

#[test]
fn a_notice_of_each_cloud_ends_a_training_with_a_checkpoint() {
    let server = Arc::new(MetadataServer::new());
    let address = server.address();
    stopped_by(GceNotice::at(address), &server, "gce");
    stopped_by(AwsNotice::at(address), &server, "aws");
    stopped_by(AzureNotice::at(address), &server, "azure");
}

#[test]
fn a_server_that_is_not_there_is_asked_again_and_ends_nothing() {
    struct Counted(GceNotice, Arc<AtomicUsize>);
    impl PreemptionNotice for Counted {
        fn is_given(&mut self) -> std::io::Result<bool> {
            let given = self.0.is_given();
            self.1.fetch_add(1, Ordering::SeqCst);
            given
        }
    }
    let nobody = ReservedPorts::new(1, None).unwrap();
    let nobody = format!("127.0.0.1:{}", nobody.of_workers()[0]);
    let (stop, asked) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let notice = Counted(GceNotice::at(nobody), Arc::clone(&asked));
    let watcher = PreemptionWatcher::start(notice, Duration::from_millis(1), &stop).unwrap();
    let begun = Instant::now();
    while asked.load(Ordering::SeqCst) < 3 {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "it is not asked again"
        );
        thread::yield_now();
    }
    assert!(watcher.failure().is_some());
    drop(watcher);
    assert!(!stop.load(Ordering::Relaxed));
}
