//! `num_bins` of the layer `discretization`, whose boundaries are found in the training rows.

use phalanx::config::{DefaultValue, Field, Kind};
use serde_json::json;

use super::Located;
use super::component::Component;
use super::reader::Reader;

/// The layer that may have it.
pub(super) const LAYER: &str = "discretization";
const BOUNDARIES: &str = "bin_boundaries";

/// The setting, which is none of the library's.
pub(super) const NUM_BINS: Field = Field::new(
    "num_bins",
    Kind::Whole(2, 1 << 16),
    DefaultValue::Words("`bin_boundaries`"),
    "in place of `bin_boundaries`, of an input of CSV files, or of Parquet files that are read as tables: the number of bins between the quantiles of its numbers in the training rows, as many numbers in each bin as can be. They are kept with the model",
)
.example("10");

impl Reader {
    /// Takes the number of bins out of the settings of a layer, and boundaries in its place until they are found.
    pub(super) fn num_bins(&mut self, component: &mut Component) {
        let Some(settings) = component.settings.as_object_mut() else {
            return;
        };
        let Some(written) = settings
            .remove(NUM_BINS.name)
            .filter(|value| !value.is_null())
        else {
            return;
        };
        let has_both = settings
            .insert(BOUNDARIES.to_owned(), json!([0.0]))
            .is_some();
        let at = component.place(NUM_BINS.name);
        let number = written.as_u64().filter(|_| NUM_BINS.kind.accepts(&written));
        let Some(number) = number.and_then(|number| usize::try_from(number).ok()) else {
            let (expected, next) = (NUM_BINS.kind.words(), "write for example `num_bins: 10`");
            let message =
                format!("`num_bins` of layer \"{LAYER}\" is {written}, expected {expected}");
            return self.problem(at, message, next);
        };
        if has_both {
            let message =
                "`num_bins` finds the boundaries of bins, and `bin_boundaries` is there too";
            return self.problem(at, message, "keep one of them");
        }
        component.num_bins = Some(Located { value: number, at });
    }
}
