//! The file of `--prices`: what an hour of a machine costs, and how much it computes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use phalanx_launch::spec::{Role, Spec};
use serde::Deserialize;

use crate::failure::Failure;

/// Prices by machine type, by accelerator, and of this machine.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Prices {
    /// What costs are in, such as `USD`.
    pub(super) currency: String,
    machines: BTreeMap<String, Price>,
    accelerators: BTreeMap<String, Price>,
    /// Of tasks without a machine type.
    here: Option<Price>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Price {
    /// Of an hour.
    hour: Option<f64>,
    /// FLOPs of a second that a training reaches there.
    flops: Option<f64>,
}

impl Prices {
    /// Reads a file.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let wrong = |what: String| Failure::usage(format!("--prices {}: {what}", path.display()));
        let text = fs::read(path).map_err(|error| wrong(format!("{error}; check the path")))?;
        let (root, problems) = phalanx_yaml::parse(&text).map_err(|problem| {
            wrong(format!(
                "line {}: {}; {}",
                problem.at.line, problem.message, problem.next
            ))
        })?;
        if let Some(problem) = problems.first() {
            return Err(wrong(format!(
                "line {}: {}; {}",
                problem.at.line, problem.message, problem.next
            )));
        }
        let json = root.to_json().unwrap_or_default();
        let prices: Self = serde_json::from_value(json).map_err(|error| {
            wrong(format!("{error}; write it as {{currency: USD, machines: {{n1-standard-4: {{hour: 0.19, flops: 1e11}}}}}}"))
        })?;
        let tables = [&prices.machines, &prices.accelerators];
        let all = tables
            .into_iter()
            .flat_map(BTreeMap::values)
            .chain(&prices.here);
        let numbers = all.flat_map(|price| [price.hour, price.flops]).flatten();
        let is_price = |number: &f64| number.is_finite() && *number >= 0.0;
        match numbers.into_iter().find(|number| !is_price(number)) {
            Some(number) => Err(wrong(format!(
                "{number} is no price; write a number from 0"
            ))),
            None => Ok(()),
        }?;
        Ok(prices)
    }

    /// What all tasks of a job cost an hour.
    pub(super) fn of_hour(&self, spec: &Spec) -> Result<f64, String> {
        let of_role = |role: &Role| {
            let parts = self.parts(role)?;
            let hours = parts
                .into_iter()
                .map(|(name, price, count)| match price.hour {
                    Some(hour) => Ok(hour * f64::from(count)),
                    None => Err(format!("there is no `hour` of {name}")),
                });
            Ok(hours.sum::<Result<f64, String>>()? * role.count as f64)
        };
        spec.roles.iter().map(of_role).sum()
    }

    /// The FLOPs of a second of all tasks of a role, if they are given.
    pub(super) fn flops(&self, role: &Role) -> Option<f64> {
        let parts = self.parts(role).ok()?;
        // Accelerators compute in place of the machine that they belong to.
        let (_, price, count) = parts.into_iter().next_back()?;
        let flops = price.flops.filter(|flops| *flops > 0.0)?;
        Some(flops * f64::from(count) * role.count as f64)
    }

    /// What a task of a role pays for: its machine, then its accelerators.
    fn parts(&self, role: &Role) -> Result<Vec<(String, Price, u32)>, String> {
        let missing = |name: &str| format!("there is no price of {name}");
        let machine = match &role.machine {
            Some(machine) => {
                let price = self.machines.get(&machine.name);
                (
                    machine.name.clone(),
                    *price.ok_or_else(|| missing(&machine.name))?,
                    1,
                )
            }
            None => {
                let price = self.here.ok_or_else(|| missing("this machine (`here`)"))?;
                ("this machine (`here`)".to_owned(), price, 1)
            }
        };
        let mut parts = vec![machine];
        if let Some(gpu) = role.accelerator.as_ref().filter(|gpu| gpu.count > 0) {
            let price = self.accelerators.get(&gpu.kind);
            parts.push((
                gpu.kind.clone(),
                *price.ok_or_else(|| missing(&gpu.kind))?,
                gpu.count,
            ));
        }
        Ok(parts)
    }
}
