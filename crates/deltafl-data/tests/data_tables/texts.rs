//! Tables with a column of texts.

use super::*;

const REVIEWS: [&str; 4] = [
    "author,text,stars\nann,\"A good, GOOD film\",good\nann,bad,bad\n",
    "{\"author\": \"ann\", \"text\": \"A good, GOOD film\", \"stars\": \"good\"}\n\n{\"stars\": \"bad\", \"text\": \"bad\", \"author\": \"ann\"}\n",
    "[{\"author\": \"ann\", \"text\": \"A good, GOOD film\", \"stars\": \"good\"},\n{\"stars\": \"bad\", \"text\": \"bad\", \"author\": \"ann\"}]",
    "\u{feff}author;text;stars\r\nann;A good, GOOD film;good\r\nann;bad;bad\r\n",
];

pub(super) fn text_columns() -> table::TableColumns {
    table::TableColumns { texts: vec!["text".into()], ..columns("author", "stars") }
}

fn format_of(text: &str) -> table::TableFormat {
    match text.starts_with(['{', '[']) {
        true => table::TableFormat::JsonLines,
        false => table::TableFormat::Delimited(table::Dialect::Csv),
    }
}

#[test]
fn texts_are_words_of_the_vocabulary_in_every_format() {
    for text in REVIEWS {
        let folder = Folder::new();
        let file = folder.file("t", text);
        let imported =
            table::import_files(&[file], format_of(text), &text_columns(), Features::Auto, &folder.target())
                .unwrap();
        let federation = opened(&imported);
        assert_eq!(federation.kind(), InputKind::Tokens { len: 5, vocabulary: 6 });
        let words: Vec<&str> = federation.words().unwrap().iter().collect();
        assert_eq!(words, ["", "good", ",", "a", "bad", "film"], "{text}");
        assert_eq!(federation.class_names(), ["bad", "good"]);
        let examples = federation.examples(FederationIndex(0));
        let mut buffer = BatchBuffer::default();
        assert_eq!(buffer.gather(&examples, 0..2).inputs.tokens(), [3, 1, 2, 1, 5, 4, 0, 0, 0, 0]);
        let again = folder.0.path().join("again");
        deltafl_data::save(&federation, &again).unwrap();
        deltafl_data::open(&again).unwrap().verify().unwrap();
    }
    let characters = table::TableColumns {
        text: table::TextOptions { unit: TextUnit::Characters, ..table::TextOptions::default() },
        ..text_columns()
    };
    let federation = opened(&csv(&Folder::new(), "author,text,stars\na,aba,x\na,b,y\n", &characters));
    assert_eq!(federation.kind(), InputKind::Tokens { len: 3, vocabulary: 3 });
}

#[test]
fn the_vocabulary_is_that_of_the_train_devices() {
    let columns = table::TableColumns { split: Some("part".into()), ..text_columns() };
    let text = "author,part,text,stars\nann,train,seen,x\nbob,test,hidden seen,y\n";
    let federation = opened(&csv(&Folder::new(), text, &columns));
    assert_eq!(federation.words().unwrap().iter().collect::<Vec<_>>(), ["", "seen"]);
    let mut buffer = BatchBuffer::default();
    let tokens = buffer.gather(&federation.examples(FederationIndex(1)), 0..1).inputs.tokens().to_vec();
    assert_eq!(tokens, [1, 0], "an unknown word is skipped");
}

#[test]
fn later_texts_use_the_words_of_the_first() {
    let folder = Folder::new();
    let first = opened(&csv(&folder, REVIEWS[0], &text_columns()));
    let contract = DataContract::from_federation(&first);
    let later = folder.file("l.csv", "stars,text\nbad,an awful film\n");
    let options = table::LikeOptions { one_device: true, ..table::LikeOptions::default() };
    let target = ImportTarget::new(folder.0.path().join("later"));
    let format = table::TableFormat::Delimited(table::Dialect::Csv);
    let federation = opened(&table::import_like(&[later], format, &contract, &options, &target).unwrap());
    assert_eq!(federation.kind(), first.kind());
    let mut buffer = BatchBuffer::default();
    let tokens = buffer.gather(&federation.examples(FederationIndex(0)), 0..1).inputs.tokens().to_vec();
    assert_eq!(tokens, [5, 0, 0, 0, 0]);
}
