//! The section `data` of a folder of images.

use std::path::{Path, PathBuf};

use phalanx::data::CorruptPolicy;
use phalanx::image::{ImagePipeline, Region, Scale};

use super::paths;
use super::reader::{Reader, Section, boolean, finite, list, text, whole};
use super::sections::{as_usize, located};
use super::training_file::{AUGMENT, IMAGE_TEST, IMAGES, STANDARD};
use super::{Data, ImageSettings, ImageTest, Images, Located, Mix, TrainConfig};
use phalanx_yaml::{Node, Value};

impl Reader {
    /// Mixed images have shares of several classes.
    pub(super) fn check_mix(&mut self, TrainConfig { data, losses, .. }: &TrainConfig) {
        let mix = data.images().and_then(|images| images.mix.as_ref());
        let (Some(Located { at, .. }), [of]) = (mix, &losses[..]) else {
            return;
        };
        let loss = &of.component;
        if loss.name != "categorical_crossentropy" {
            self.problem(
                *at,
                format!(
                    "mixed images have shares of several classes, and the loss is {}",
                    loss.name
                ),
                "write `loss: categorical_crossentropy`",
            );
        }
    }

    /// The section `data` of a folder of images.
    pub(super) fn image_data(&mut self, node: &Node, folder: &Path) -> Option<Data> {
        let section = self.section(node, "data", IMAGES)?;
        let path = self.image_path(&section, folder);
        let settings = self.image_settings(&section);
        let test = section
            .node("test")
            .and_then(|node| self.image_test(node, folder));
        Some(Data::Images(Images {
            folder: path?,
            settings: settings?,
            test,
        }))
    }

    /// The keys of a section that say how files of images become examples.
    pub(super) fn image_settings(&mut self, section: &Section<'_>) -> Option<ImageSettings> {
        let size = self.value(section, "image_size", image_size);
        let scale = self.scale(section).unwrap_or_default();
        let corrupt = self.value(section, "corrupt", corrupt).unwrap_or_default();
        let augment = section.node("augment").map(|node| self.augment(node));
        let (height, width) = size?;
        let (plan, mix) =
            augment.unwrap_or_else(|| Some((ImagePipeline::new(height, width), None)))?;
        Some(ImageSettings {
            plan: ImagePipeline {
                size: (height, width),
                scale,
                ..plan
            },
            mix,
            corrupt,
        })
    }

    fn scale(&mut self, section: &Section<'_>) -> Option<Scale> {
        let node = section.node("scale")?;
        if !matches!(node.value, Value::Map(_)) {
            return self.value(section, "scale", image_scale);
        }
        let section = self.section(node, "scale", STANDARD)?;
        let mean = self.value(&section, "mean", channels);
        let std = self.value(&section, "std", channels);
        Some(Scale::Standard {
            mean: mean?,
            std: std?,
        })
    }

    /// A plan of which size and scale do not matter, and what is done to whole batches.
    fn augment(&mut self, node: &Node) -> Option<(ImagePipeline, Option<Located<Mix>>)> {
        let section = self.section(node, "augment", AUGMENT)?;
        let mut share = |name| self.value(&section, name, finite).unwrap_or(0.0) as f32;
        let (brightness, contrast) = (share("brightness"), share("contrast"));
        let (saturation, hue) = (share("saturation"), share("hue"));
        let rotation = share("rotation").to_radians();
        let least = self.value(&section, "least_area", finite).unwrap_or(0.3) as f32;
        let region = self.value(&section, "region", |node| {
            Some(match text(node)? {
                "whole" => Region::Whole,
                "centre" => Region::Centre,
                "crop" => Region::Crop,
                "centre_crop" => Region::CentreCrop,
                "area" => Region::Area { least },
                _ => return None,
            })
        });
        let mix = self.mix(&section);
        let plan = ImagePipeline {
            region: region.unwrap_or_default(),
            flip: self.value(&section, "flip", boolean).unwrap_or(false),
            brightness,
            contrast,
            saturation,
            hue,
            rotation,
            ..ImagePipeline::new(1, 1)
        };
        Some((plan, mix))
    }

    fn mix(&mut self, section: &Section<'_>) -> Option<Located<Mix>> {
        let alpha = |node: &Node| finite(node).map(|alpha| alpha as f32);
        let up = self.value(section, "mix_up", located(alpha));
        let cut = self.value(section, "cut_mix", located(alpha));
        if let (Some(_), Some(Located { at, .. })) = (&up, &cut) {
            let message = "`augment` has `mix_up` and `cut_mix`, expected at most one of them";
            self.problem(*at, message, "remove one of them");
        }
        let up = up.map(|Located { value, at }| (Mix::Up(value), at));
        let cut = cut.map(|Located { value, at }| (Mix::Cut(value), at));
        up.or(cut).map(|(value, at)| Located { value, at })
    }

    fn image_test(&mut self, node: &Node, folder: &Path) -> Option<Located<ImageTest>> {
        let section = self.section(node, "test", IMAGE_TEST)?;
        self.exactly_one(&section);
        let split = self.value(&section, "split", finite).map(ImageTest::Split);
        let apart = self.image_path(&section, folder);
        let value = split.or(apart.map(|path| ImageTest::Folder(path.value)))?;
        Some(Located { value, at: node.at })
    }

    fn image_path(&mut self, section: &Section<'_>, folder: &Path) -> Option<Located<PathBuf>> {
        let path = |node: &Node| paths::path(node, folder);
        self.value(section, "image_folder", located(path))
    }
}

fn image_size(node: &Node) -> Option<(usize, usize)> {
    let side = |node: &Node| whole(node).map(as_usize);
    match list(node)? {
        [height, width] => Some((side(height)?, side(width)?)),
        _ => None,
    }
}

/// A number for each channel, or one for all.
fn channels(node: &Node) -> Option<[f32; 3]> {
    let number = |node: &Node| finite(node).map(|number| number as f32);
    match list(node) {
        Some([r, g, b]) => Some([number(r)?, number(g)?, number(b)?]),
        Some(_) => None,
        None => number(node).map(|number| [number; 3]),
    }
}

fn image_scale(node: &Node) -> Option<Scale> {
    match text(node)? {
        "unit" => Some(Scale::Unit),
        "signed" => Some(Scale::Signed),
        "bytes" => Some(Scale::Bytes),
        _ => None,
    }
}

pub(super) fn corrupt(node: &Node) -> Option<CorruptPolicy> {
    match text(node)? {
        "fail" => Some(CorruptPolicy::Fail),
        "skip" => Some(CorruptPolicy::Skip),
        _ => None,
    }
}
