//! Callbacks by name and settings, as training files have them.

use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::learning_rate_scheduler::ScheduleSettings;
use super::{
    BackupAndRestore, Callback, CsvLogger, EarlyStopping, LearningRateScheduler, ModelCheckpoint,
    ReduceLrOnPlateau, RemoteMonitor, SwapEmaWeights, TerminateOnNan,
};
use crate::Result;
use crate::config::{Described, Description, Entry, Family};

/// A callback that a program and a `fit` share.
pub type SharedCallback = Arc<Mutex<dyn Callback>>;

/// The kinds that [`from_config`] knows.
pub const KINDS: [&str; 9] = [
    "early_stopping",
    "reduce_lr_on_plateau",
    "learning_rate_scheduler",
    "model_checkpoint",
    "backup_and_restore",
    "csv_logger",
    "terminate_on_nan",
    "swap_ema_weights",
    "remote_monitor",
];

/// The kinds by which all processes of a training do something together, such as save or stop; of the others one may be at the first alone.
pub(in crate::fit) const ACT_TOGETHER: [&str; 8] = [
    "early_stopping",
    "reduce_lr_on_plateau",
    "learning_rate_scheduler",
    "model_checkpoint",
    "backup_and_restore",
    "terminate_on_nan",
    "swap_ema_weights",
    "keep_best",
];

/// The callback of a kind with these settings, as a JSON object.
///
/// # Errors
/// An unknown kind or setting (naming the nearest), or a value that makes no sense.
pub fn from_config(kind: &str, settings: &Value) -> Result<SharedCallback> {
    Entry::read(&entries(), Family::Callback, kind, settings)
}

/// The callbacks with their settings and defaults.
pub(crate) fn descriptions() -> Vec<Description> {
    Entry::descriptions(&entries())
}

fn entries() -> Vec<Entry<SharedCallback>> {
    fn entry<C: Callback + Described + Clone + Default + 'static>() -> Entry<SharedCallback> {
        Entry::with(C::COMPONENT, C::default(), |callback: C| {
            Arc::new(Mutex::new(callback)) as SharedCallback
        })
    }
    let schedule = |settings: ScheduleSettings| {
        Arc::new(Mutex::new(LearningRateScheduler::from(settings))) as SharedCallback
    };
    vec![
        entry::<EarlyStopping>(),
        entry::<ReduceLrOnPlateau>(),
        Entry::with(
            ScheduleSettings::COMPONENT,
            ScheduleSettings::default(),
            schedule,
        ),
        entry::<ModelCheckpoint>(),
        entry::<BackupAndRestore>(),
        entry::<CsvLogger>(),
        entry::<TerminateOnNan>(),
        entry::<SwapEmaWeights>(),
        entry::<RemoteMonitor>(),
    ]
}
