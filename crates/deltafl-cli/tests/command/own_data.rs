//! A table of reviews and a folder of images, from the files to a report and to predictions.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use crate::support::Workdir;

mod defaults;
mod first_try;
mod odd_files;

/// Reviews by twelve authors, with quotes, empty cells, Windows line ends and a byte order mark.
fn reviews(authors: usize) -> String {
    let good =
        ["a wonderful, warm film", "simply \"\"great\"\" acting throughout", "great and wonderful story"];
    let bad = ["a dull and boring film", "boring, boring, boring again", "terrible acting and a dull story"];
    let mut text = "\u{feff}author,date,text,stars\r\n".to_owned();
    for author in 0..authors {
        for i in 0..10 {
            let (texts, stars) = if (author + i) % 3 == 0 { (bad, "rotten") } else { (good, "fresh") };
            let date = if i == 4 { String::new() } else { format!("2024-01-{:02}", i + 1) };
            let opening = format!("film {} of {author}:", i * 7 + author);
            text.push_str(&format!("critic {author},{date},\"{opening} {}\",{stars}\r\n", texts[i % 3]));
        }
    }
    text
}

#[test]
fn a_table_of_reviews_goes_to_a_report_and_to_predictions_in_four_commands_each() {
    let workdir = Workdir::with("");
    fs::write(workdir.path("reviews.csv"), reviews(12)).unwrap();
    let told = workdir.printed("data import auto reviews.csv --out reviews");
    for expected in ["author  device", "text    text", "stars   label       2 classes", "not used: dates"] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
    assert!(told.contains("12 devices, 120 examples, 2 classes (fresh, rotten)"), "{told}");
    let told = workdir.printed("init reviews --rounds 20");
    assert!(told.contains("model          text-bag"), "{told}");
    assert!(told.contains("the best of 4 in 10 rounds (--rate)"), "{told}");
    workdir.printed("run reviews.toml --out r --quiet");
    workdir.printed("report r");
    // A new table: another order of columns, no labels, unseen words and authors.
    let new = "text,author\nwonderful wonderful film,nobody\nxyzzy dull boring,nobody\n,\n";
    fs::write(workdir.path("new.csv"), new).unwrap();
    let told = workdir.printed("predict r new.csv --out p.csv");
    assert!(told.contains("p.csv: 3 predictions of"), "{told}");
    let predictions = fs::read_to_string(workdir.path("p.csv")).unwrap();
    let rows: Vec<&str> = predictions.lines().collect();
    assert_eq!(rows[0], "row,prediction,p(fresh),p(rotten)");
    assert!(rows[1].starts_with("0,fresh,") && rows[2].starts_with("1,rotten,"), "{predictions}");
    let sum: f64 = rows[2].split(',').skip(2).map(|p| p.parse::<f64>().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-5, "{predictions}");
    // The same through standard input and into Parquet, and the original data is not needed.
    fs::remove_dir_all(workdir.path("reviews")).unwrap();
    let mut child =
        workdir.command("predict r - --theta 0.5 --out p.parquet").stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(new.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(fs::read(workdir.path("p.parquet")).unwrap().starts_with(b"PAR1"));
    let told = workdir.refusal("init nowhere");
    assert!(told.contains("cannot open the federation nowhere"), "{told}");
}

/// Writes a PNG of 12 × 12 pixels: a bright bar at the top or on the left, on noise.
fn write_png(path: &std::path::Path, top: bool, seed: usize, colour: bool) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut encoder = png::Encoder::new(fs::File::create(path).unwrap(), 12, 12);
    encoder.set_color(if colour { png::ColorType::Rgb } else { png::ColorType::Grayscale });
    encoder.set_depth(png::BitDepth::Eight);
    let pixel = |i: usize| {
        let (x, y) = (i % 12, i / 12);
        let bright = if top { y < 3 } else { x < 3 };
        let noise = (i * 31 + seed * 17) % 50;
        (if bright { 200 } else { 0 } + noise) as u8
    };
    let pixels: Vec<u8> =
        (0..144).flat_map(|i| if colour { vec![pixel(i), 0, 255] } else { vec![pixel(i)] }).collect();
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
}

#[test]
fn a_folder_of_images_goes_to_a_report_and_to_predictions_in_four_commands_each() {
    let workdir = Workdir::with("");
    for device in 0..6 {
        for i in 0..10 {
            let class = ["left", "top"][i % 2];
            let path = workdir.path(&format!("photos/device {device}/{class}/{i}.png"));
            write_png(&path, i % 2 == 1, device * 10 + i, false);
        }
    }
    let told = workdir.printed("data import auto photos --out p");
    assert!(told.contains("6 devices, 60 examples, 2 classes (left, top)"), "{told}");
    assert!(told.contains("12 × 12 × 1"), "{told}");
    let told = workdir.printed("init p --model linear --rounds 10 --rate 0.1");
    assert!(told.contains("linear, as requested"), "{told}");
    workdir.printed("run p.toml --out r --quiet");
    workdir.printed("report r");
    let told = workdir.printed("predict r p --out predictions.csv");
    assert!(told.contains("60 predictions") && told.contains("(left: 30, top: 30)"), "{told}");

    // Images as they are, without classes and of another size: a folder, a file, a table of paths.
    let told = workdir.printed("predict r photos --out files.csv");
    assert!(told.contains("60 predictions") && told.contains("(left: 30, top: 30)"), "{told}");
    let files = fs::read_to_string(workdir.path("files.csv")).unwrap();
    assert!(files.starts_with("file,prediction,p(left),p(top)\nphotos/device 0/left/0.png,left,"), "{files}");
    fs::copy(workdir.path("photos/device 0/top/1.png"), workdir.path("alone.png")).unwrap();
    fs::write(workdir.path("list.csv"), "note,path\nx,alone.png\ny,photos/device 1/left/0.png\n").unwrap();
    assert!(workdir.printed("predict r alone.png --out one.csv").contains("(left: 0, top: 1)"));
    assert!(workdir.printed("predict r list.csv --out two.csv").contains("(left: 1, top: 1)"));
    let told = workdir.printed("data import auto photos --like r --out again");
    assert!(told.contains("6 devices, 60 examples, 2 classes (left, top)"), "{told}");
    write_png(&workdir.path("other/a/bottom/1.png"), true, 1, false);
    let told = workdir.refusal("data import auto other --like r --out unknown");
    assert!(told.contains("1.png: the class \"bottom\" is not among those that the model knows"), "{told}");
    let told = workdir.refusal("data import auto list.csv --like r --out no").replace("\n  │", "");
    assert!(told.contains("list.csv: this is a table, but the earlier data were images"), "{told}");
    fs::create_dir(workdir.path("empty")).unwrap();
    assert!(workdir.refusal("predict r empty --out p.csv").contains("empty: holds no PNG or JPEG images"));

    // Coloured images keep three channels, or are grey on request; sizes are stated.
    write_png(&workdir.path("colours/a/left/1.png"), false, 1, true);
    write_png(&workdir.path("colours/a/top/2.png"), true, 2, false);
    assert!(workdir.printed("data import auto colours --out c").contains("12 × 12 × 3"));
    let told = workdir.printed("data import auto colours --grey --size 6x6 --out g");
    assert!(told.contains("6 × 6 × 1") && told.contains("1 coloured images became grey"), "{told}");
    assert!(told.contains("2 images, with a Lanczos filter"), "{told}");
    fs::write(workdir.path("colours/a/top/broken.jpg"), b"\xff\xd8\xff no image").unwrap();
    let told = workdir.refusal("data import auto colours --out b");
    assert!(told.contains("broken.jpg") && !workdir.path("b").exists(), "{told}");
}

#[test]
fn decisions_can_be_overridden_and_every_column_is_listed() {
    let workdir = Workdir::with("");
    let rows: String = (0..40)
        .map(|i| {
            format!(
                "{},{},{},{},{},2024-02-{:02}\n",
                i % 4,
                i,
                ["a", "b", "?"][i % 3],
                i * 3 % 7,
                100 + 13 * i,
                i % 28 + 1
            )
        })
        .collect();
    fs::write(workdir.path("t.csv"), format!("shop,id,kind,stars,price,day\n{rows}")).unwrap();
    let told = workdir.printed("data import auto t.csv --out a");
    for expected in
        ["shop   device", "id     identifier  not used", "stars  label       7 classes", "price  number"]
    {
        assert!(told.contains(expected), "{expected}: {told}");
    }
    let told = workdir
        .printed("data import auto t.csv --label price --device kind --date day --ignore stars --out b");
    assert!(told.contains("price  label       numbers to predict"), "{told}");
    assert!(told.contains("numbers to predict"), "{told}");
    let told = workdir.printed("data info a");
    for expected in ["kind  category", "price  number", "day  not used: dates, unless --date names them"] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
    assert!(
        workdir
            .refusal("data import auto t.csv --label colour --out c")
            .contains("there is no column \"colour\"")
    );
    assert!(workdir.refusal("data import auto nowhere.csv --out c").contains("nowhere.csv"));
}

/// Every layer of images.
const STACK_OF_IMAGES: &str = "[{ kind = 'conv2d', channels = 4, size = 3, stride = 2, padding = 1 },
    { kind = 'group-norm', groups = 2 }, { kind = 'gelu' }, { kind = 'max-pool', size = 2 },
    { kind = 'residual', layers = [{ kind = 'conv2d', channels = 4, size = 3, padding = 1 }, { kind = 'tanh' }] },
    { kind = 'layer-norm' }, { kind = 'avg-pool', size = 2, stride = 1 }, { kind = 'flatten' },
    { kind = 'dense', units = 6, bias = false }, { kind = 'dropout', rate = 0.2 }]";

/// Every layer of texts.
const STACK_OF_WORDS: &str = "[{ kind = 'embedding', entries = 6 }, { kind = 'lstm', hidden = 5 },
    { kind = 'gru', hidden = 4 }, { kind = 'dense', units = 3 }, { kind = 'layer-norm' }, { kind = 'mean' }]";

/// Runs an exported network on a table and compares it with the file of `predict`.
const COMPARE: &str = r#"
import csv, json, re, sys
import numpy, onnxruntime
network, table, predictions = sys.argv[1:]
session = onnxruntime.InferenceSession(network)
contract = json.loads(session.get_modelmeta().custom_metadata_map["contract"])
rows = list(csv.DictReader(open(table)))
names = [i.name for i in session.get_inputs()]
if names == ["words"]:
    words = {word: i for i, word in enumerate(contract["words"]) if i}
    length = contract["inputs"]["len"]
    def coded(text):
        ids = [words[w] for w in re.findall(r"[\w']+|[.,!?;]", text.lower()) if w in words][:length]
        return ids + [0] * (length - len(ids))
    feed = {"words": numpy.array([coded(row["text"]) for row in rows], dtype=numpy.int64)}
elif names == ["input"]:
    columns = [column["name"] for column in contract["columns"]]
    feed = {"input": numpy.array([[float(row[c]) for c in columns] for row in rows], dtype=numpy.float32)}
else:
    feed = {}
    for column in contract["columns"]:
        values = [row[column["name"]] for row in rows]
        if "categories" in column:
            feed[column["name"]] = numpy.array([[value] for value in values], dtype=object)
        else:
            feed[column["name"]] = numpy.array([[float(value or "nan")] for value in values], dtype=numpy.float32)
[got] = session.run(None, feed)
expected = [[float(x) for x in row[2:] or row[1:2]] for row in list(csv.reader(open(predictions)))[1:]]
expected = numpy.array(expected)
difference = abs(got - expected).max()
assert got.shape == expected.shape and difference < 1e-5 * max(1.0, abs(expected).max()), (got.shape, expected.shape, difference)
print("agrees", got.shape, difference)
"#;

/// Loads an exported file with PyTorch, compares its tensors with those of the safetensors file,
/// and computes the predictions of three models.
const COMPARE_TORCH: &str = r#"
import csv, json, re, sys
import torch
from safetensors.torch import load_file
path, model, contract, table, predictions = sys.argv[1:]
tensors = torch.load(path, weights_only=True)
same = load_file(path[:-2] + "safetensors")
assert tensors.keys() == same.keys() and all(torch.equal(tensors[k], same[k]) for k in same), tensors.keys()
contract = json.load(open(contract))
rows = list(csv.DictReader(open(table)))
def coded(row):
    out = []
    for column in contract["columns"]:
        value = row[column["name"]]
        if "categories" in column:
            out += [float(value == c or (value == "" and c == "(missing)")) for c in column["categories"]]
        else:
            out.append(float(value) if value else column["fill"])
            out += [float(value == "")] if column.get("indicator") else []
    return out
if model == "text-bag":
    words = {word: i for i, word in enumerate(contract["words"]) if i}
    texts = [[words[w] for w in re.findall(r"[\w']+|[.,!?;]", row["text"].lower()) if w in words] for row in rows]
    texts = [text[:contract["inputs"]["len"]] for text in texts]
    h = torch.stack([tensors["embedding.weight"][text].mean(0) for text in texts])
else:
    h = torch.tensor([coded(row) for row in rows])
    if "normalisation" in contract:
        scale, shift = (torch.tensor(contract["normalisation"][k]) for k in ("scale", "shift"))
        h = h * scale + shift
for layer in ["fc1", "fc2"] if model == "perceptron" else ["fc"]:
    linear = torch.nn.Linear(h.shape[1], len(tensors[layer + ".weight"]))
    linear.load_state_dict({name: tensors[f"{layer}.{name}"] for name in ("weight", "bias")})
    h = linear(h)
    h = torch.relu(h) if layer == "fc1" else h
expected = torch.tensor([[float(x) for x in row[2:] or row[1:2]] for row in list(csv.reader(open(predictions)))[1:]])
got = torch.softmax(h, 1) if contract["classes"] else h
difference = (got - expected).abs().max().item()
assert got.shape == expected.shape and difference < 1e-5 * max(1.0, expected.abs().max().item()), (got.shape, difference)
"#;

#[test]
#[ignore = "needs a python3 with torch and safetensors, whose path DELTAFL_PYTHON contains"]
fn torch_computes_the_predictions_of_the_command() {
    let python = std::env::var("DELTAFL_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let workdir = Workdir::with("");
    fs::write(workdir.path("compare.py"), COMPARE_TORCH).unwrap();
    fs::write(workdir.path("reviews.csv"), reviews(8)).unwrap();
    let row = |i: usize| {
        let area = if i.is_multiple_of(7) { String::new() } else { (i * 13 % 29).to_string() };
        format!("s{},{area},{},{},{}\n", i % 5, ["flat", "house", ""][i % 3], i % 2, 100 + i * 3)
    };
    let rows: String = (0..60).map(row).collect();
    fs::write(workdir.path("mixed.csv"), format!("shop,area,kind,label,price\n{rows}")).unwrap();
    let cases = [
        ("mixed.csv", "--missing category", "linear"),
        ("mixed.csv", "--label price --regression", "linear"),
        ("mixed.csv", "", "perceptron"),
        ("reviews.csv", "", "text-bag"),
    ];
    for (i, (table, options, model)) in cases.into_iter().enumerate() {
        workdir.printed(&format!("data import auto {table} {options} --out f{i}"));
        workdir.printed(&format!("init f{i} --model {model} --rate 0.1 --rounds 3"));
        workdir.printed(&format!("run f{i}.toml --out r{i} --quiet"));
        workdir.printed(&format!("predict r{i} {table} --theta 1 --out p{i}.csv"));
        workdir.printed(&format!("export r{i} --format safetensors --out e{i}"));
        let exported = workdir.printed(&format!("export r{i} --format torch --out e{i}"));
        let file = exported.lines().next().unwrap();
        let output = std::process::Command::new(&python)
            .args(["compare.py", file, model, &format!("r{i}/contract.json"), table, &format!("p{i}.csv")])
            .current_dir(workdir.path(""))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{model} on {table}: {said}");
    }
}

#[test]
#[ignore = "needs a python3 with onnxruntime, whose path DELTAFL_PYTHON contains"]
fn onnxruntime_computes_the_predictions_of_the_command() {
    let python = std::env::var("DELTAFL_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let workdir = Workdir::with("");
    fs::write(workdir.path("compare.py"), COMPARE).unwrap();
    fs::write(workdir.path("reviews.csv"), reviews(8)).unwrap();
    let mixed: String = (0..60)
        .map(|i| {
            let area = if i % 7 == 0 { String::new() } else { (i * 13 % 29).to_string() };
            format!("s{},{area},{},{},{}\n", i % 5, ["flat", "house", ""][i % 3], i % 2, 100 + i * 3)
        })
        .collect();
    fs::write(workdir.path("mixed.csv"), format!("shop,area,kind,label,price\n{mixed}")).unwrap();
    let header: Vec<String> = (0..256).map(|i| format!("x{i}")).collect();
    let pixels: String = (0..40)
        .map(|i| {
            let row: Vec<String> =
                (0..256).map(|j| format!("{:.3}", ((i * 31 + j * 17) % 97) as f64 / 97.0)).collect();
            format!("d{},{},{}\n", i % 4, i % 2, row.join(","))
        })
        .collect();
    fs::write(workdir.path("pixels.csv"), format!("user,label,{}\n{pixels}", header.join(","))).unwrap();
    let cases = [
        ("mixed.csv", "--missing category", "linear"),
        ("mixed.csv", "--label price --regression", "linear"),
        ("pixels.csv", "", "linear"),
        ("pixels.csv", "", "logistic"),
        ("pixels.csv", "", "perceptron"),
        ("pixels.csv", "", "conv-net"),
        ("pixels.csv", "", "mlp"),
        ("pixels.csv", "", "cnn"),
        ("pixels.csv", "", STACK_OF_IMAGES),
        ("mixed.csv", "--label price --regression", "mlp"),
        ("reviews.csv", "", "text-bag"),
        ("reviews.csv", "", "gru"),
        ("reviews.csv", "", "rnn"),
        ("reviews.csv", "", STACK_OF_WORDS),
    ];
    for (i, (table, options, model)) in cases.into_iter().enumerate() {
        let name = format!("f{i}");
        workdir.printed(&format!("data import auto {table} {options} --out {name}"));
        let layers = model.strip_prefix('[');
        let preset = match (layers, table) {
            (Some(_), "reviews.csv") => "text-bag",
            (Some(_), _) => "linear",
            (None, _) => model,
        };
        workdir.printed(&format!("init {name} --model {preset} --rate 0.1 --rounds 3"));
        if layers.is_some() {
            let path = workdir.path(&format!("{name}.toml"));
            let text = fs::read_to_string(&path).unwrap();
            let (head, rest) = text.split_once("[model]").unwrap();
            let tail = rest.find("\n[").map_or("", |at| &rest[at..]);
            fs::write(&path, format!("{head}[model]\nkind = 'stack'\nlayers = {model}\n{tail}")).unwrap();
        }
        workdir.printed(&format!("run {name}.toml --out r{i} --quiet"));
        workdir.printed(&format!("predict r{i} {table} --theta 1 --out p{i}.csv"));
        for format in ["safetensors", "torch"] {
            workdir.printed(&format!("export r{i} --format {format}"));
        }
        let exported = workdir.printed(&format!("export r{i} --format onnx"));
        let network = exported.lines().next().unwrap();
        let output = std::process::Command::new(&python)
            .args(["compare.py", network, table, &format!("p{i}.csv")])
            .current_dir(workdir.path(""))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{model} on {table}: {said}");
    }
}
