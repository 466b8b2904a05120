//! A folder of images, a folder for each class.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::files::{io, past_the_end};
use super::{RecordLocation, Records};
use crate::data::Dataset;
use crate::data::stages::permute;
use crate::image::ImagePipeline;
use crate::{Error, Result};

/// Ends of file names that are images, in lower case.
const IMAGES: [&str; 4] = ["jpeg", "jpg", "png", "webp"];
/// Ends of file names that are images of formats that are not read, in lower case.
const OTHERS: [&str; 8] = ["avif", "bmp", "gif", "heic", "jp2", "jxl", "tif", "tiff"];
/// The most images accepted.
const MAX_IMAGES: usize = 100_000_000;

/// The images below a folder, their classes the folders directly in it, both sorted by name (as in
/// `image_dataset_from_directory`); hidden files and files that are no `jpeg`, `jpg`, `png` or
/// `webp` are left out.
#[derive(Clone, Debug)]
pub struct ImageFolder {
    classes: Vec<String>,
    images: Vec<(PathBuf, u32)>,
    left_out: usize,
    max_image: u64,
}

/// What is found below a folder.
#[derive(Default)]
struct Listing {
    /// Paths of images, with their classes.
    images: Vec<(PathBuf, u32)>,
    /// Images of formats that are not read.
    left_out: usize,
}

/// An image as its file holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedImage {
    /// The bytes of the file.
    pub bytes: Vec<u8>,
    /// Index of the class.
    pub class: u32,
}

impl ImageFolder {
    /// Whether a file is read as an image, by the end of its name.
    #[must_use]
    pub fn is_image(path: &Path) -> bool {
        ends_with(path, &IMAGES)
    }

    /// Lists the images below a folder; no file has more than `max_image` bytes when it is read.
    ///
    /// # Errors
    /// When a folder cannot be read, or there is no class or no image.
    pub fn open(folder: impl AsRef<Path>, max_image: u64) -> Result<Self> {
        let folder = folder.as_ref();
        let classes: Vec<PathBuf> = entries(folder)?
            .into_iter()
            .filter(|path| path.is_dir())
            .collect();
        let mut found = Listing::default();
        for (class, folder) in classes.iter().enumerate() {
            found.list(folder, class as u32)?;
        }
        if found.images.is_empty() {
            return Err(Error::User(format!(
                "{} has {} folders and no file with the ending {} in them; expected a folder for each class with its images",
                folder.display(),
                classes.len(),
                IMAGES.join(", ")
            )));
        }
        let name = |path: &PathBuf| {
            path.file_name()
                .map(|name| name.to_string_lossy().into_owned())
        };
        Ok(Self {
            classes: classes.iter().filter_map(name).collect(),
            images: found.images,
            left_out: found.left_out,
            max_image,
        })
    }

    /// All images below a folder, in the order of their paths, of class 0: for predictions (`labels=None` of Keras'
    /// `image_dataset_from_directory`).
    ///
    /// # Errors
    /// When a folder cannot be read, or there is no image.
    pub fn unlabelled(folder: impl AsRef<Path>, max_image: u64) -> Result<Self> {
        let folder = folder.as_ref();
        let mut found = Listing::default();
        found.list(folder, 0)?;
        if found.images.is_empty() {
            return Err(Error::User(format!(
                "{} has no file with the ending {}; name a folder with images in it or below it",
                folder.display(),
                IMAGES.join(", ")
            )));
        }
        Ok(Self {
            classes: vec!["all".into()],
            images: found.images,
            left_out: found.left_out,
            max_image,
        })
    }

    /// The names of the classes, in the order of their indices.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The number of images below the folder of formats that are not read, by the ends of their names: `bmp`, `gif`, `tiff` and others.
    #[must_use]
    pub const fn left_out(&self) -> usize {
        self.left_out
    }

    /// The folder without a share of its images drawn by the seed, and those (`validation_split` of Keras'
    /// `image_dataset_from_directory`, but without a share that depends on the order of classes).
    ///
    /// # Errors
    /// When a part would be empty.
    pub fn validation_split(&self, fraction: f64, seed: u64) -> Result<(Self, Self)> {
        let count = self.images.len();
        let held = (count as f64 * fraction).round();
        if !(held >= 1.0 && held < count as f64) {
            return Err(Error::User(format!(
                "a validation split of {fraction} of {count} images leaves a part empty; choose a fraction between 0 and 1 \
                 that leaves an image on each side"
            )));
        }
        let place = |i: usize| permute(count as u64, seed, 0, i as u64);
        let part = |validation: bool| {
            let wanted = |i: &usize| (place(*i) < held as u64) == validation;
            let images = (0..count).filter(wanted).map(|i| self.images[i].clone());
            Self {
                images: images.collect(),
                ..self.clone()
            }
        };
        Ok((part(false), part(true)))
    }

    /// The images as examples of one size; see [`Dataset::from_images`].
    ///
    /// # Errors
    /// When a number of the pipeline makes no sense.
    pub fn dataset(&self, pipeline: &ImagePipeline, seed: u64) -> Result<Dataset> {
        Dataset::from_images(self.clone(), pipeline, seed)
    }

    /// The path and the class of each image.
    #[must_use]
    pub fn images(&self) -> &[(PathBuf, u32)] {
        &self.images
    }
}

/// What a folder holds, sorted, without hidden files.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let refused = |error| io(folder, "read", error);
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(refused)? {
        let entry = entry.map_err(refused)?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

impl Listing {
    fn list(&mut self, folder: &Path, class: u32) -> Result<()> {
        for path in entries(folder)? {
            let metadata = fs::symlink_metadata(&path).map_err(|error| io(&path, "read", error))?;
            // A link to a folder may lead in circles.
            if metadata.is_dir() {
                self.list(&path, class)?;
            } else if ImageFolder::is_image(&path) {
                self.images.push((path, class));
            } else if ends_with(&path, &OTHERS) {
                self.left_out += 1;
            }
            if self.images.len() > MAX_IMAGES {
                return Err(Error::User(format!(
                    "there are more than {MAX_IMAGES} images; split the folder"
                )));
            }
        }
        Ok(())
    }
}

fn ends_with(path: &Path, ends: &[&str]) -> bool {
    let extension = path
        .extension()
        .map(|end| end.to_string_lossy().to_lowercase());
    extension.is_some_and(|end| ends.contains(&&*end))
}

impl Records for ImageFolder {
    type Item = EncodedImage;

    fn len(&self) -> usize {
        self.images.len()
    }

    fn get(&self, i: usize) -> Result<EncodedImage> {
        let Some((path, class)) = self.images.get(i) else {
            return Err(past_the_end("image", i, self.images.len()));
        };
        let wrong = |message| Error::Data {
            source_name: path.display().to_string(),
            place: "byte 0".into(),
            message,
        };
        let found = fs::metadata(path).map_err(|error| io(path, "open", error))?;
        // A pipe would wait for a writer.
        if !found.is_file() {
            return Err(wrong("this is no file; leave it out of the folder".into()));
        }
        let file = File::open(path).map_err(|error| io(path, "open", error))?;
        let mut bytes = Vec::with_capacity(found.len().min(self.max_image) as usize);
        let mut limited = file.take(self.max_image.saturating_add(1));
        (limited.read_to_end(&mut bytes)).map_err(|error| io(path, "read", error))?;
        if bytes.len() as u64 > self.max_image {
            return Err(wrong(format!(
                "the file has more than {} bytes, the most accepted; raise max_image",
                self.max_image
            )));
        }
        Ok(EncodedImage {
            bytes,
            class: *class,
        })
    }

    fn place(&self, i: usize) -> RecordLocation {
        RecordLocation {
            file: self.images[i].0.display().to_string(),
            place: "the image".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::test_folder;

    #[test]
    fn classes_are_the_sorted_folders() {
        let folder = test_folder::create("images");
        for (path, bytes) in [
            ("dog/b.JPG", "1"),
            ("dog/a.png", "22"),
            ("cat/deep/er/z.webp", "3"),
            ("cat/notes.txt", ""),
            ("dog/c.BMP", ""),
            ("dog/deep/d.tiff", ""),
            ("cat/.x.png", ""),
            ("top.png", ""),
        ] {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        fs::create_dir(folder.join("empty")).unwrap();
        let images = ImageFolder::open(&folder, 1).unwrap();
        assert_eq!(images.classes(), ["cat", "dog", "empty"]);
        assert_eq!(images.left_out(), 2);
        let classes: Vec<u32> = images.images().iter().map(|(_, class)| *class).collect();
        assert_eq!(classes, [0, 1, 1]);
        assert_eq!(
            images.get(2).unwrap(),
            EncodedImage {
                bytes: b"1".to_vec(),
                class: 1
            }
        );
        let all = ImageFolder::unlabelled(&folder, 1).unwrap();
        let below = |(path, class): &(PathBuf, u32)| {
            assert_eq!(*class, 0);
            path.strip_prefix(&folder).unwrap().to_owned()
        };
        let paths: Vec<PathBuf> = all.images().iter().map(below).collect();
        let expected = ["cat/deep/er/z.webp", "dog/a.png", "dog/b.JPG", "top.png"];
        assert_eq!(paths, expected.map(PathBuf::from));
        let error = ImageFolder::unlabelled(folder.join("empty"), 1).unwrap_err();
        assert!(
            error.to_string().contains("name a folder with images"),
            "{error}"
        );
        let error = images.get(1).unwrap_err().to_string();
        assert!(
            error.contains("a.png: byte 0: the file has more than 1 bytes"),
            "{error}"
        );
        let error = ImageFolder::open(folder.join("empty"), 1)
            .unwrap_err()
            .to_string();
        assert!(error.contains("has 0 folders and no"), "{error}");
    }
}
