//! What is kept of data beside a model, with the words of texts: what is accepted is written as the same, and is what a model can take.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx_cli::data_facts::Facts;
use phalanx_cli::texts::TextNumbers;

fuzz_target!(|input: &[u8]| {
    let Ok(facts) = serde_json::from_slice::<Facts>(input) else {
        return;
    };
    // Numbers that are not finite are written as none.
    if let Ok(text) = serde_json::to_vec(&facts)
        && let Ok(again) = serde_json::from_slice::<Facts>(&text)
    {
        assert_eq!(serde_json::to_vec(&again).expect("written before"), text);
    }
    drop(facts.model_inputs());
    for text in &facts.texts {
        let TextNumbers::Words(vectorizer) = &text.vectorizer else {
            continue;
        };
        let words = vectorizer.vocabulary();
        assert!(words.size() == words.keys().len() + 2 && vectorizer.options().length > 0);
        if vectorizer.options().length < 1 << 16 {
            let encoded = vectorizer.encode(words.keys()).expect("few words");
            assert_eq!(encoded.dims()[0], words.keys().len());
        }
    }
});
