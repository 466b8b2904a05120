//! Endings of names that promise the formats of others.

use std::path::Path;

/// Whose format the ending of a path promises, where this library writes one of its own.
pub(crate) fn owner_of_ending(path: &Path) -> Option<&'static str> {
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    match ending.as_str() {
        "h5" | "hdf5" | "keras" => Some("Keras"),
        "pt" | "pth" => Some("PyTorch"),
        "onnx" => Some("ONNX"),
        "npz" => Some("NumPy"),
        _ => None,
    }
}

/// Whether weights with this name are to be a file of Keras 3, which reads no other ending.
pub(crate) fn is_of_keras(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.ends_with(".weights.h5"))
}

/// What is wrong with a name that promises the format of others, and a better one: of weights in a file, or of a directory.
pub(crate) fn foreign_ending(path: &Path, is_file: bool) -> Option<String> {
    let owner = owner_of_ending(path)?;
    let (what, better) = match (is_file, owner) {
        (true, _) if is_of_keras(path) => return None,
        (true, "Keras") => ("a file of safetensors", path.with_extension("weights.h5")),
        (true, _) => ("a file of safetensors", path.with_extension("safetensors")),
        (false, _) => ("a directory", path.with_extension("phx")),
    };
    let (path, better) = (path.display(), better.display());
    Some(format!(
        "`{path}` is by its ending of {owner}, which does not read what is written, {what}; name it `{better}`"
    ))
}

#[cfg(test)]
mod tests {
    use super::foreign_ending;

    #[test]
    fn endings_of_others_are_told() {
        let told = |path: &str, is_file| foreign_ending(path.as_ref(), is_file);
        for (path, is_file, better) in [
            (
                "a/m.pt",
                true,
                "PyTorch, which does not read what is written, a file of safetensors; name it `a/m.safetensors`",
            ),
            ("w.PTH", true, "name it `w.safetensors`"),
            ("a/m.h5", true, "name it `a/m.weights.h5`"),
            ("m.keras", true, "name it `m.weights.h5`"),
            ("m.weights.h5", false, "name it `m.weights.phx`"),
            ("m.keras", false, "a directory; name it `m.phx`"),
        ] {
            let text = told(path, is_file).unwrap();
            assert!(text.ends_with(better), "{text}");
        }
        for path in [
            "m",
            "m.phx",
            "w.safetensors",
            "ckpt_0.5",
            "m.ckpt",
            "m.weights.h5",
        ] {
            assert_eq!(told(path, true), None, "{path}");
        }
    }
}
