"""Check values that were read from a file against a schema of pydantic; a ValueError names file and field."""

import reprlib
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

#: A finite number, whole or not; no bool, no text.
Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**63)]

#: pydantic's kinds of errors in the words of a message.
_WANTED = {
    "float_type": "a number",
    "finite_number": "a finite number",
    "int_type": "a whole number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "string_pattern_mismatch": "a name in the right form",
}


class Schema(BaseModel):
    """Base of the schemas: types are exact, and further fields are allowed."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())


def check_schema(schema: type[BaseModel], value: Any, where: object) -> None:
    """Check a value.

    Arguments:
        where: what the message begins with, such as the file.

    Raises:
        ValueError: the first field that is missing or has another type, what came and what is allowed.
    """
    try:
        schema.model_validate(value)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(map(str, fault["loc"])) or "the content"
        if fault["type"] == "missing":
            raise ValueError(f"{where}: {field} is missing") from None
        text = str(fault["msg"]).removeprefix("Value error, ").replace("Input should be", "must be", 1)
        wanted = f"must be {_WANTED[fault['type']]}" if fault["type"] in _WANTED else text
        raise ValueError(f"{where}: {field} {wanted}, got {reprlib.repr(fault['input'])}") from None
