"""The one place where messages become protobuf and protobuf becomes messages.

`to_request` / `from_request` and `to_response` / `from_response` are inverse to each other. Reading checks everything
that can be checked without a session: known enum values, lengths of rows, ranges of numbers; what fails is an
`InvalidRequest`, whoever sent it.
"""

from .fields import ERROR_REASONS as ERROR_REASONS
from .requests import from_request as from_request
from .requests import model_info_request as model_info_request
from .requests import plan_query_from_proto as plan_query_from_proto
from .requests import plan_query_to_proto as plan_query_to_proto
from .requests import to_request as to_request
from .responses import from_response as from_response
from .responses import model_info_from_proto as model_info_from_proto
from .responses import model_info_to_proto as model_info_to_proto
from .responses import plan_from_proto as plan_from_proto
from .responses import plan_to_proto as plan_to_proto
from .responses import to_response as to_response
