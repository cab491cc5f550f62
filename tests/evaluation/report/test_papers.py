import pytest

from csekit.evaluation.report.papers import paper_table, rows_beside

TABLES = ["sts", "transfer", "stsb_retrieval", "beir", "geometry"]


@pytest.mark.parametrize("name", TABLES)
def test_rows_are_complete_and_their_averages_add_up(name: str) -> None:
    rows = paper_table(name)
    assert len({(row.source, row.backbone, row.label) for row in rows}) == len(rows)
    for row in rows:
        paper, _, table = row.source.partition(", ")
        assert paper in ("DiffCSE", "InfoCSE", "InforMin-CL", "MSSE") and table.startswith("Table ")
        assert row.backbone in ("BERT-base", "BERT-large", "RoBERTa-base", "RoBERTa-large")
        if "Avg" in row.scores:
            others = [value for column, value in row.scores.items() if column != "Avg"]
            assert sum(others) / len(others) == pytest.approx(row.scores["Avg"], abs=0.016), row  # two are misprinted
    with pytest.raises(ValueError, match="name must be one of"):
        paper_table("stss")


def labels(name: str, methods: list[str | None], backbones: list[str | None]) -> list[tuple[str, str]]:
    return [(row.source, row.label) for row in rows_beside(name, methods, backbones)]


def test_a_method_stands_beside_its_own_paper() -> None:
    assert labels("sts", ["informin", "simcse"], ["bert-base-uncased"]) == [
        ("InforMin-CL, Table 2", "SimCSE-BERT-base"),
        ("InforMin-CL, Table 2", "InforMin-CL-BERT-base"),
    ]
    large = labels("transfer", ["informin"], ["FacebookAI/roberta-large"])
    assert [label for _, label in large] == ["SimCSE-RoBERTa-large", "InforMin-CL-RoBERTa-large"]
    assert labels("sts", ["informin"], ["mini-wiki"]) == labels("sts", ["informin"], ["bert-base-cased"])
    assert ("DiffCSE, Table 1", "SimCSE-BERT-base") in labels("sts", ["simcse"], [None])


def test_without_a_known_method_every_paper_is_there_once() -> None:
    rows = rows_beside("sts", ["joint"], ["bert-base-uncased"])
    assert {"diffcse", "infocse", "informin", "msse", "simcse"} <= {row.method for row in rows}
    assert [row.label for row in rows].count("DiffCSE-BERT-base") == 1, "InfoCSE and MSSE copy that row"
    assert rows == rows_beside("sts", [None], ["bert-base-uncased"])
