//! A search for features of a training that do not go together: random models, data, settings and callbacks, trained in two ways that
//! must give the same, such as on one device and on several.
//!
//! What is compared is all that a training leaves: variables, slots of the optimizer, results of each epoch, of a test, and predictions.
//! Two ways that compute alike must agree to the bit. Others may differ by rounding, which trainings make grow: where they differ by more than
//! the bound, the same training from variables that are changed in their last bits says how much rounding alone would do.
//! A training that fails prints the features that it fails with.
//!
//! Environment: `PHALANX_FUZZ_MINUTES`, `PHALANX_FUZZ_SEED`, `PHALANX_FUZZ_FIRST` (the training of the seed to begin with),
//! `PHALANX_FUZZ_COUNT` (how many are tried, whatever time they take), `PHALANX_FUZZ_RELATION` (the only one that is tried),
//! `PHALANX_FUZZ_WITHOUT` (features to leave out, between commas), `PHALANX_FUZZ_GO_ON` (behind a wrong training),
//! `PHALANX_FUZZ_LOG` (a line for each training).

mod case;
mod draw;
#[path = "../four_devices/mod.rs"]
mod four_devices;
mod judge;
mod loops;
mod models;
mod outcome;
mod places;
#[allow(dead_code, reason = "this search asks for fewer kinds of numbers")]
#[path = "../gradient_search/random.rs"]
mod random;
mod relations;
mod rows;
mod saves;
mod search;
mod settings;
mod stops;
mod weights;
